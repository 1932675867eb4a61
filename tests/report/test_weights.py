from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fedctta.report.weights import depict, mean_weights, pick_moments, weights_there
from fedctta.results.records import Record

Fake = Callable[..., Record]


@pytest.fixture
def run(fake: Fake) -> Record:
    """Client 1 is there always, client 2 in the second round only, client 3 never; who is away has an own row."""
    domain = np.array([[0, -1, -1], [0, 1, -1]], np.int32)
    w = np.stack([np.eye(3), np.array([[0.6, 0.4, 0], [0.3, 0.7, 0], [0, 0, 1]])]).astype(np.float32)
    return replace(fake(rounds=2, clients=3), domain=domain, collaboration=w, collaboration_rounds=np.arange(2))


def test_rows_of_clients_that_are_away_are_blank(run: Record) -> None:
    blank = np.isnan(weights_there(run)).all(2)
    assert blank.tolist() == [[False, True, True], [False, False, True]]


def test_the_mean_counts_the_rounds_in_which_a_client_was_there(run: Record) -> None:
    mean = mean_weights(run)
    assert mean[0] == pytest.approx([0.8, 0.2, 0])
    assert mean[1] == pytest.approx([0.3, 0.7, 0])  # and not the half of it plus half of itself
    assert np.isnan(mean[2]).all()


def test_who_never_sends_keeps_itself_whenever_it_comes(run: Record) -> None:
    alone = replace(run, collaboration=np.eye(3, dtype=np.float32)[None], collaboration_rounds=np.zeros(1, np.int64))
    mean = mean_weights(replace(alone, bytes_up=0))
    assert mean[:2] == pytest.approx(np.eye(3)[:2])
    assert np.isnan(mean[2]).all()


@pytest.mark.parametrize(
    ("kept", "count", "rounds"),
    [(101, 3, [11, 51, 91]), (101, 5, [11, 31, 51, 71, 91]), (3, 5, [1, 51, 101]), (1, 3, [1])],
)
def test_moments_are_spread_over_the_run_and_none_is_picked_twice(fake: Fake, kept, count, rounds) -> None:
    run = fake(rounds=101, kept=kept)
    moments = pick_moments(run, count)
    assert [title for title, _ in moments] == [f"round {k}" for k in rounds]
    at = [int(np.flatnonzero(run.collaboration_rounds == k - 1)[0]) for k in rounds]
    assert all(np.array_equal(w, run.collaboration[k]) for k, (_, w) in zip(at, moments, strict=True))


def test_without_uploads_there_is_one_moment(fake: Fake) -> None:
    ((title, w),) = pick_moments(fake(aggregator="local", kept=4), 3)
    assert title == "every round"
    assert np.array_equal(w, np.eye(4))


def test_what_figures_show_is_depicted(fake):
    run = fake(aggregator="fedtsa", kept=7)
    seen = depict(run)
    assert seen.moments.shape == (len(seen.titles), 4, 4)
    assert np.array_equal(seen.first, run.collaboration[:, 0])
    assert np.array_equal(seen.rounds, run.collaboration_rounds)
    assert all(0 < at < len(run.seen) for at in seen.shifts)
