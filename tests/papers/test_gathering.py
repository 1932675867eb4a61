"""Seeds of a cell become one entry, with a reason where some are missing."""

from __future__ import annotations

import doctest
from dataclasses import replace

import pytest

from fedctta.papers import gathering
from fedctta.papers.gathering import compare
from fedctta.papers.missing import NOT_RUN, OTHER_SHARD, Missing
from fedctta.papers.tables import Panel
from fedctta.runs.settings import Experiment

CELL = Experiment(aggregator="fedavg")
GRID = {("FedAvg", "A"): CELL}


def panel(by="mean", published=((50.0, 1.0),)):
    return Panel(name="p", by=by, columns={"A": {}}, rows={"FedAvg": {}}, published={"FedAvg": published})


def entry(runs):
    """The entry of a cell whose seeds came out like this; an absent seed is left out of what was found."""
    keys = [replace(CELL, seed=seed).fingerprint for seed in range(len(runs))]
    found = {key: run for key, run in zip(keys, runs, strict=True) if run is not None}
    table = compare(panel(), GRID, len(runs), found)
    return table.lines[0].entries[0]


def test_doctests():
    assert doctest.testmod(gathering).failed == 0


class Run(float):
    """A stand-in for a digest, which is its accuracy; seed 0 has 60, and every next one a point more."""

    @property
    def settings(self):
        return {"seed": int(self - 60)}

    def of_run(self, metric):
        return float(self)

    def split(self, by, metric):
        return {"fog": self - 1, "snow": self + 1}


@pytest.fixture
def record(monkeypatch):
    monkeypatch.setattr(gathering, "Digest", Run)


def test_all_seeds_are_beside_the_published_number(record):
    found = entry([Run(61.0), Run(63.0)])
    assert (found.ours, found.paper, found.paper_spread, found.reason) == ((61.0, 63.0), 50, 1, "")


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        ([Missing(NOT_RUN), Missing(NOT_RUN)], NOT_RUN),
        ([Run(60.0), Missing(NOT_RUN)], ""),
        ([Run(60.0), Missing("out of luck")], "out of luck"),
        ([None, None], OTHER_SHARD),
    ],
)
def test_what_is_missing_has_a_reason(record, runs, reason):
    found = entry(runs)
    assert found.ours == tuple(run for run in runs if isinstance(run, float))
    assert found.reason == reason


def test_parts_come_before_the_mean(record):
    table = compare(panel("domain", ((1.0, 0.0), (2.0, 0.0), (3.0, 0.0))), GRID, 1, {CELL.fingerprint: Run(60.0)})
    assert table.columns == ("fog", "snow", "mean")
    assert [each.ours for each in table.lines[0].entries] == [(59.0,), (61.0,), (60.0,)]
    assert [each.paper for each in table.lines[0].entries] == [1, 2, 3]


def test_parts_are_numbered_where_nothing_ran(record):
    table = compare(panel("domain", ((1.0, 0.0), (2.0, 0.0), (3.0, 0.0))), GRID, 1, {})
    assert table.columns == ("1", "2", "mean")


def test_classes_that_a_seed_never_saw_are_left_out_of_its_mean(monkeypatch):
    class ByClass(Run):
        def split(self, by, metric):
            return {"C0": self - 1, "C1": float("nan") if self == 60 else self + 1}

    monkeypatch.setattr(gathering, "Digest", ByClass)
    found = {replace(CELL, seed=seed).fingerprint: ByClass(60 + seed) for seed in range(2)}
    table = compare(panel("class", ((1.0, 0.0), (2.0, 0.0), (3.0, 0.0))), GRID, 2, found)
    assert [each.ours for each in table.lines[0].entries] == [(59.0, 60.0), (62.0,), (60.0, 61.0)]
    assert [each.seeds for each in table.lines[0].entries] == [(0, 1), (1,), (0, 1)]
