"""The live line: what it says, and how seldom it looks."""

from __future__ import annotations

from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from fedctta.runs import progress
from fedctta.runs.progress import RoundBar


class Counts:
    """A tally that notes when it is looked at."""

    def __init__(self, rounds: int) -> None:
        self.looks: list[int] = []
        self._seen = np.full((rounds, 2), 10, np.int32)

    def accuracy(self, rounds: int) -> float:
        self.looks.append(rounds)
        return 0.625

    def seen(self):
        return self._seen


@pytest.fixture
def clock(monkeypatch):
    """Give a clock that the test sets: `clock[0]` is the time."""
    now = [0.0]
    monkeypatch.setattr(progress, "perf_counter", lambda: now[0])
    return now


def console() -> Console:
    return Console(file=StringIO(), force_terminal=True, width=120)


def news(bar: RoundBar) -> str:
    return bar._bar.tasks[0].fields["news"]


def test_the_line_tells_round_accuracy_and_speed(clock):
    screen, counts = console(), Counts(100)
    with RoundBar(screen) as bar:
        watch = bar.watch("[1/2] niid bn+fedctta seed 0", 100)
        clock[0] = 4.0
        watch(0, counts)
        assert news(bar) == "accuracy 62.50 %  5 images/s"
        clock[0] = 5.0
        watch(19, counts)
        assert news(bar) == "accuracy 62.50 %  80 images/s"
        assert bar._bar.tasks[0].completed == 20
        bar._bar.refresh()
    text = screen.file.getvalue()
    assert "[1/2] niid bn+fedctta seed 0" in text
    assert "round 20/100" in text


def test_it_looks_a_few_times_a_second_only(clock):
    counts = Counts(1000)
    with RoundBar(console()) as bar:
        watch = bar.watch("run", 1000)
        for t in range(500):
            clock[0] = (t + 1) / 100
            watch(t, counts)
    assert 15 <= len(counts.looks) <= 20


def test_a_resumed_run_counts_only_what_it_played(clock):
    with RoundBar(console()) as bar:
        watch = bar.watch("run", 100)
        clock[0] = 2.0
        watch(50, Counts(100))
        assert news(bar).endswith(" 10 images/s")


def test_the_last_round_is_looked_at_and_ends_the_line(clock):
    counts = Counts(3)
    with RoundBar(console()) as bar:
        watch = bar.watch("run", 3)
        clock[0] = 0.001
        for t in range(3):
            watch(t, counts)
        assert counts.looks == [3]
        assert bar._bar.tasks == []
        bar.watch("next", 5)
        assert [task.description for task in bar._bar.tasks] == ["next"]


def test_a_silent_bar_prints_nothing(clock):
    screen = console()
    with RoundBar(screen, enabled=False) as bar:
        watch = bar.watch("run", 2)
        clock[0] = 1.0
        watch(0, Counts(2))
        watch(1, Counts(2))
    assert screen.file.getvalue() == ""
