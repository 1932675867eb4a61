"""`fedctta reproduce all`, `status`, `pack` and `pages`, and what they refuse."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fedctta.cli import app
from fedctta.papers import campaign, pages, tables

TABLE = """
title = "A table"
run = { dataset = "shapes-c", domains = "fog", clients = 2, slots = 1, batch = 5, stream = "iid" }
[[panel]]
name = "means"
columns.IID = {}
rows.Local = { aggregator = "local" }
rows.FedAvg = { aggregator = "fedavg" }
"""


@pytest.fixture
def preset(home, monkeypatch):
    (home / "mine.toml").write_text(TABLE)
    for module in (tables, campaign, pages):
        monkeypatch.setattr(module, "published", lambda: {"mine": home / "mine.toml"})
    monkeypatch.setattr("fedctta.papers.scoreboard.read_catalogue", dict)
    return home


def invoke(*words):
    return CliRunner().invoke(app, ["reproduce", *words])


def test_from_nothing_to_pages(preset):
    assert invoke("all", "--pool", "p", "--device", "cpu", "--shard", "1/2", "-q").exit_code == 0
    half = invoke("status", "--pool", "p", "--json")
    assert [(page["page"], page["done"], page["runs"]) for page in json.loads(half.output)] == [
        ("mine", 1, 2),
        ("all", 1, 2),
    ]
    done = invoke("all", "--pool", "p", "--device", "cpu", "-q")
    assert done.output.startswith("2 runs: 1 were there, 1 were played")
    assert "mine" in invoke("status", "--pool", "p").output
    assert "2 runs, 2 new, 0 replaced" in " ".join(invoke("pack", "--pool", "p", "--out", "docs").output.split())
    told = invoke("pages", "--out", "docs").output
    assert "1 pages written: mine" in told
    assert {path.name for path in (preset / "docs").iterdir()} == {
        "README.md",
        "mine.md",
        "mine.png",
        "records.parquet",
    }


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["all", "--gather"], "--gather has no effect with all: `fedctta reproduce pages`"),
        (["all", "slots=2"], "slots=2: presets are played as they are here"),
        (["pack", "mine.toml", "--out", "x"], "a word has no effect with pack"),
        (["all", "--out", "x"], "--out has no effect with all"),
        (["status", "--jobs", "2"], "--jobs has no effect with status"),
        (["status", "--dry-run"], "--dry-run has no effect with status"),
        (["pages", "--seeds", "2", "--out", "x"], "--seeds has no effect with pages"),
        (["pack", "--pool", "x"], "pack needs the folder of results"),
        (["pack", "--pool", "nowhere", "--out", "x"], "nowhere is no pool"),
        (["status", "--pool", "nowhere"], "nowhere is no pool"),
        (["all", "--pool", "mine.toml"], "mine.toml is a file, and a pool is a folder"),
        (["mine.toml", "--pool", "mine.toml", "--dry-run"], "mine.toml is a file, and a pool is a folder"),
        (["mine.toml", "--json"], "--json has no effect with mine.toml"),
    ],
)
def test_what_has_no_effect_is_refused(preset, words, told):
    done = invoke(*words)
    assert done.exit_code != 0
    assert told in str(done.exception)
    assert not (preset / "x").exists()


def test_a_failure_is_told_with_its_reason(preset, monkeypatch):
    def fails(*arguments, **words):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(campaign, "run_one", fails)
    done = invoke("all", "--pool", "p", "--device", "cpu", "-q")
    assert "2 not played: RuntimeError: out of luck" in done.output
    assert "2 runs failed" in str(done.exception)


def test_ctrl_c_says_how_to_continue(preset, monkeypatch):
    def stopped(*arguments, **words):
        raise KeyboardInterrupt

    monkeypatch.setattr(campaign, "run_one", stopped)
    done = invoke("all", "--pool", "p", "--device", "cpu", "-q")
    assert (done.exit_code, "the same command continues" in done.output) == (130, True)
