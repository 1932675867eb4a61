"""Cells are played unless they failed beside others, and a failure becomes a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from fedctta.errors import UserError
from fedctta.papers import playing
from fedctta.papers.missing import Missing
from fedctta.papers.playing import attempt, find_cells, play_cells
from fedctta.runs.progress import RoundBar
from fedctta.runs.settings import Experiment


class Everything:
    """No data are lacking but those of the seed 2."""

    def reason(self, experiment, builder):
        return "not available" if experiment.seed == 2 else ""

    def missing(self, experiment, builder):
        return Missing("not available") if experiment.seed == 2 else None


def bar():
    return RoundBar(Console(stderr=True), enabled=False)


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Records of these tests are words, and so are their digests."""
    monkeypatch.setattr(playing, "depict", lambda record: None)
    monkeypatch.setattr(playing, "digest", lambda record, weights: record)


CELLS = [Experiment(seed=seed) for seed in range(4)]
KEYS = [experiment.fingerprint for experiment in CELLS]


def test_what_failed_in_another_process_is_not_tried_again(monkeypatch):
    shown, played = [], []

    def side_by_side(experiments, folder, jobs, resume):
        shown.append(([each.seed for each in experiments], jobs, resume))
        return {KEYS[1]: "out of luck"}

    monkeypatch.setattr(playing, "side_by_side", side_by_side)
    monkeypatch.setattr(playing, "run_one", lambda each, *args, **words: played.append(each.seed) or f"of {each.seed}")
    found = play_cells(CELLS, None, Everything(), Path("there"), 2, bar())
    assert shown == [([0, 1, 3], 2, True)]
    assert played == [0, 3]
    assert list(found.values()) == [Missing("out of luck"), "of 0", Missing("not available"), "of 3"]
    assert found[KEYS[0]] == "of 0"


def test_gathering_plays_nothing(monkeypatch):
    monkeypatch.setattr(playing, "run_one", None)
    monkeypatch.setattr(playing, "kept", lambda each, builder, folder: "kept" if each.seed == 0 else None)
    found = find_cells(CELLS[:3], None, Everything(), Path("there"))
    assert found == {
        KEYS[0]: "kept",
        KEYS[1]: Missing("not available: not run yet"),
        KEYS[2]: Missing("not available"),
    }


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UserError("no such thing"), "no such thing"),
        (RuntimeError("out of\nmemory"), "RuntimeError: out of memory"),
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
    ],
)
def test_a_failure_is_a_reason(error, reason):
    def fail():
        raise error

    assert attempt(fail) == Missing(reason)


@pytest.mark.parametrize("error", [KeyboardInterrupt, AssertionError])
def test_what_is_no_failure_of_a_cell_ends_all(error):
    def fail():
        raise error

    with pytest.raises(error):
        attempt(fail)
