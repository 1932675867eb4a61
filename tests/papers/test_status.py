"""The status counts what is done and missing per page, and shared runs once in all."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from fedctta.papers.campaign import Campaign, plan_all, play_all
from fedctta.papers.pool import read_pool
from fedctta.papers.status import PageStatus, find_status, show_status

POOL = Path("pool")


def test_pages_and_all_are_counted(presets):
    play_all(plan_all(seeds=1), POOL, 1, Console(stderr=True))
    one, two, every = find_status(plan_all(), read_pool(POOL))
    assert (one.name, one.runs, one.done, one.missing) == ("one", 4, 2, 2)
    assert (one.seeds, one.wanted) == ((1, 1), (2, 2))
    assert (two.name, two.runs, two.missing, two.cost()) == ("two", 2, 0, "-")
    assert (every.name, every.runs, every.done) == ("all", 5, 3)
    assert one.minutes.keys() == {"CPU"}
    assert one.unknown == 0


def test_without_runs_nothing_is_known(presets):
    one, *_ = find_status(plan_all(), read_pool(POOL))
    assert (one.done, one.unknown, one.cost()) == (0, 4, "not known")


def test_source_models_to_be_trained_first_are_counted_once(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path))
    (watch,) = plan_all(names=["natural-watch"]).plans
    status = find_status(Campaign((watch, watch), watch.mine), {})
    assert [page.trainings for page in status] == [3, 3, 3]


def test_the_cost_in_words():
    page = PageStatus("x", 1200, 100, (0, 1), (1, 3), {"GPU": 71.6, "CPU": 0.2}, 30, 2)
    assert page.cost() == "72 GPU min + < 1 CPU min + not known for 30 + 2 source models to train"
    assert page.plain()["minutes"] == {"GPU": 71.6, "CPU": 0.2}
    console = Console(width=120)
    with console.capture() as shown:
        console.print(show_status([page]))
    assert shown.get().splitlines()[1].split()[:9] == ["x", "100", "1,200", "1,100", "0", "to", "1", "1", "to"]
