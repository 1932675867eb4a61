"""`fedctta reproduce`: its options reach the reproduction, and its result decides how it ends."""

from __future__ import annotations

from typer.testing import CliRunner

from fedctta.cli import app
from fedctta.errors import UserError
from fedctta.papers import reproduction

TABLE = """
title = "A table"
run = { dataset = "shapes-c", domains = "fog+contrast", clients = 2, slots = 1, batch = 5, niid.clusters = 2 }

[[panel]]
name = "means"
columns.NIID = { stream = "niid" }
rows.Local = { aggregator = "local" }
published.Local = [50]
"""


def invoke(*words):
    return CliRunner().invoke(app, ["reproduce", *words])


def test_without_a_name_tables_are_listed(home):
    assert "fedctta-table1" in invoke().output


def test_a_table_is_run_printed_and_written(home):
    (home / "mine.toml").write_text(TABLE)
    done = invoke("mine.toml", "--device", "cpu", "--out", "here", "-q")
    assert done.exit_code == 0
    assert "Local" in done.output
    assert len(list((home / "here" / "runs").glob("*.safetensors"))) == 1
    assert (home / "here" / "mine" / "mine.md").exists()


def test_a_shard_writes_no_report(home):
    (home / "mine.toml").write_text(TABLE)
    done = invoke("mine.toml", "--device", "cpu", "--out", "here", "--shard", "1/2", "-q")
    assert "shard 1/2 is done" in done.output
    assert not (home / "here" / "mine").exists()


def test_ctrl_c_says_how_to_continue(home, monkeypatch):
    def stopped(name, **words):
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduction, "reproduce", stopped)
    done = invoke("fedctta-table1")
    assert done.exit_code == 130
    assert "the same command continues" in done.output


def test_a_dry_run_says_what_there_is_to_do_and_does_nothing(home):
    (home / "mine.toml").write_text(TABLE)
    done = invoke("mine.toml", "--device", "cpu", "--out", "here", "--seeds", "2", "--dry-run")
    assert (done.exit_code, done.output.splitlines()[0]) == (0, "mine: 2 runs, 0 kept, 2 to play")
    assert not (home / "here").exists()
    both = invoke("mine.toml", "--dry-run", "--gather")
    assert both.exit_code != 0


def test_a_pool_that_is_not_there_is_not_gathered(home):
    (home / "mine.toml").write_text(TABLE)
    done = invoke("mine.toml", "--device", "cpu", "--out", "here", "--pool", "nowhere", "--gather")
    assert isinstance(done.exception, UserError)
    assert "nowhere is no pool" in str(done.exception)
    assert not (home / "here").exists()


def test_options_without_a_name_are_told(home):
    for words in (["--quick"], ["--seeds", "3"], ["--gather"], ["--panel", "x"], ["--jobs", "2"], ["--only", "seed=0"]):
        done = invoke(*words)
        assert done.exit_code != 0
        assert "name a table or figure" in str(done.exception)
    assert invoke().exit_code == 0
