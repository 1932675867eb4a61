"""Pages are made of records alone; those in docs/ are what their records say, or are known to have none."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from rich.console import Console

from fedctta.papers import pages
from fedctta.papers.campaign import plan_all, play_all
from fedctta.papers.missing import NOT_RUN
from fedctta.papers.pages import find_drawn, make_page, make_pages, write_page, write_text
from fedctta.papers.pool import pack
from fedctta.papers.reproduction import Reproduction, reproduce
from fedctta.papers.scoreboard import BEGIN, END, find_standing, make_scoreboard
from fedctta.papers.tables import load_paper, published
from fedctta.results.packed import NAME, read_packed

RESULTS = Path(__file__).parents[2] / "docs" / "results"

# Pages whose runs were not kept. Take a name out when its records are there; none may be added.
UNRECORDED = {
    *("continual", "pfedbbn-figure10", "pfedbbn-figure4", "pfedbbn-figure5", "pfedbbn-skew", "pfedbbn-table2"),
}
# Pages of this folder that other commands write.
OTHERS = {"README.md", "bench.md", "fedctta.md", "kin.md", "peers.md", "recall.md"}


@cache
def committed() -> dict[str, Reproduction]:
    return make_pages(read_packed(RESULTS / NAME))


def test_every_page_is_what_its_records_say():
    for page in committed().values():
        assert (RESULTS / page.paper.page).read_text(encoding="utf-8") == write_text(page), page.paper.name


def test_pages_without_records_are_known():
    """The list may only become shorter."""
    there = {name for name in published() if (RESULTS / load_paper(name).page).is_file()}
    assert there - committed().keys() == UNRECORDED


@pytest.mark.parametrize("name", [name for name in published() if (RESULTS / load_paper(name).page).is_file()])
def test_a_page_that_is_short_says_so_in_its_first_line(name):
    paper = load_paper(name)
    standing = find_standing(RESULTS, paper, committed().get(name))
    line = (RESULTS / paper.page).read_text(encoding="utf-8").splitlines()[2]
    assert line.startswith("**Missing: ") == bool(standing.lacks)


def test_every_page_is_of_a_preset_or_of_another_command():
    ours = {load_paper(name).page for name in published()}
    assert {path.name for path in RESULTS.glob("*.md")} - ours == OTHERS


def test_the_scoreboard_is_up_to_date():
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    shown = text.partition(BEGIN)[2].partition(END)[0].strip()
    assert shown == make_scoreboard(RESULTS, committed()).strip(), "run `fedctta reproduce pages --out docs/results`"


@pytest.mark.parametrize("name", [name for name in published() if load_paper(name).claims])
def test_numbers_in_claims_are_on_the_page(name):
    """Those with two decimals, in its tables; others are differences, or the paper's."""
    paper = load_paper(name)
    page = (RESULTS / paper.page).read_text(encoding="utf-8").partition("## Claims")[0]
    told = [number for claim in paper.claims for number in re.findall(r"\d+\.\d\d\b", claim.here)]
    assert [number for number in told if not re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", page)] == []


@pytest.fixture
def records(presets):
    play_all(plan_all(), Path("pool"), 1, Console(stderr=True))
    pack(Path("pool"), Path("records.parquet"), find_drawn())
    return read_packed(Path("records.parquet"))


def test_a_page_from_records_has_the_numbers_of_the_runs(records):
    made = make_page("one", records)
    played = reproduce("one", seeds=2, pool="pool", gather=True, device="auto")
    assert str(made.tables[0].lines) == str(played.tables[0].lines)  # they hold nan, which equals nothing
    assert [table.name for table in made.tables] == ["means", "who"]
    assert made.missing == ()
    assert "Missing" not in write_text(made)
    assert "## Claims\n\n- *FedAvg is best.* **Does not hold.** It is not." in write_text(made)


def test_neither_images_nor_weights_are_needed(records, monkeypatch):
    monkeypatch.setattr("fedctta.runs.cache.load_data", None)
    monkeypatch.setattr("fedctta.runs.cache.load_module", None)
    assert len(make_pages(records)) == 2


def test_a_short_page_says_so_in_its_first_line(records):
    few = {key: run for key, run in records.items() if run.settings["seed"] == 0 and run.settings["adapter"] == "bn"}
    text = write_text(make_page("one", few))
    assert text.splitlines()[2] == "**Missing: 1 of 3 cells (in means); seeds (1 of 2 in 1 of 2 cells).**"
    assert f"No-Adapt: {NOT_RUN}" in text


def test_panels_of_which_most_is_missing_are_left_out(records):
    few = {key: run for key, run in records.items() if run.settings["adapter"] == "none"}
    page = make_page("one", few)
    assert [table.name for table in page.tables] == ["means"]
    assert page.missing[0] == "who (no runs)"
    assert make_page("two", few) is None


def test_quick_runs_make_a_page_until_there_are_whole_ones(records, presets):
    play_all(plan_all(quick=True), Path("quick"), 1, Console(stderr=True))
    pack(Path("quick"), Path("quick.parquet"))
    quick = read_packed(Path("quick.parquet"))
    assert make_page("one", quick).quick == "1 slot per domain instead of 2"
    assert make_page("one", {**quick, **records}).quick == ""


def test_a_page_of_the_whole_protocol_is_not_replaced_by_a_shorter_one(records, tmp_path):
    play_all(plan_all(quick=True), Path("quick"), 1, Console(stderr=True))
    pack(Path("quick"), Path("quick.parquet"))
    short, whole = (make_page("one", read_packed(Path(name))) for name in ("quick.parquet", "records.parquet"))
    assert write_page(tmp_path, short)
    assert write_page(tmp_path, short)
    assert write_page(tmp_path, whole)
    assert not write_page(tmp_path, short)
    assert (tmp_path / "one.md").read_text() == write_text(whole)


def test_pictures_that_are_no_longer_shown_are_removed(records, tmp_path):
    (tmp_path / "one.md").write_text("![old](one-old.png) ![kept](../images/other.png)")
    (tmp_path / "one-old.png").write_bytes(b"")
    write_page(tmp_path, make_page("one", records))
    assert sorted(path.name for path in tmp_path.glob("one*.*")) == [
        "one-means.png",
        "one-who.png",
        "one.md",
        "one.toml",
    ]


def test_runs_of_the_first_seed_are_drawn(presets):
    assert len(find_drawn()) == 2  # whole and quick
    assert find_drawn() <= {run.anywhere.fingerprint for quick in (False, True) for run in plan_all(quick=quick).mine}
    assert pages.published()
