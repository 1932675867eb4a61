"""Clients that come, stay and leave."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedctta.errors import UserError
from fedctta.streams import ABSENT, build, late_uploads
from fedctta.streams.arrivals import Arrivals, Churn

NAMES = tuple(f"domain {k}" for k in range(6))


def test_one_after_another():
    plan = Arrivals().plan(3, NAMES, slots=2)
    assert plan.tolist() == [[0, -1, -1], [0, -1, -1], [-1, 2, -1], [-1, 2, -1], [-1, -1, 4], [-1, -1, 4]]


def test_stays_overlap_when_clients_come_faster_than_they_leave():
    plan = Arrivals(stay=3, every=1).plan(3, NAMES, slots=9)
    assert (plan != ABSENT).sum(1).tolist() == [1, 2, 3, 2, 1]


def test_a_second_visit_is_in_the_next_domain():
    plan = Arrivals(stay=1, visits=2).plan(2, NAMES, slots=1)
    assert plan.tolist() == [[0, -1], [-1, 3], [1, -1], [-1, 4]]


def test_more_clients_than_domains_share_them():
    plan = Arrivals(stay=1).plan(8, NAMES, slots=1)
    assert plan.max(1).tolist() == [0, 1, 2, 3, 4, 5, 0, 1]


@given(st.integers(1, 7), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 9))
@settings(deadline=None, max_examples=40)
def test_every_client_stays_as_long_as_it_should(clients, stay, every, visits, domains):
    schedule = Arrivals(stay=stay, every=every, visits=visits)
    if visits > 1 and clients * every < stay:
        with pytest.raises(UserError, match="before it has left"):
            schedule.plan(clients, NAMES[:domains], slots=1)
        return
    plan = schedule.plan(clients, NAMES[:domains], slots=1)
    assert ((plan != ABSENT).sum(0) == stay * visits).all()
    assert plan.max() < min(domains, len(NAMES))


@given(st.integers(1, 6), st.floats(0, 1), st.floats(0, 1), st.integers(0, 5))
@settings(deadline=None, max_examples=40)
def test_churn_never_shows_a_domain_more_often_than_there_are_slots(clients, join, leave, seed):
    plan = Churn(join=join, leave=leave, seed=seed).plan(clients, NAMES, slots=3)
    assert plan.shape == (18, clients)
    assert all((plan[:, i] == k).sum() <= 3 for i in range(clients) for k in range(len(NAMES)))


def test_churn_joins_leaves_and_returns():
    there = Churn(join=0.5, leave=0.5).plan(4, NAMES, slots=5) != ABSENT
    changes = np.diff(there.astype(int), axis=0)
    assert ((changes == 1).sum(0) >= 2).all()
    assert ((changes == -1).sum(0) >= 2).all()
    assert (Churn(seed=1).plan(4, NAMES, slots=5) != Churn(seed=2).plan(4, NAMES, slots=5)).any()


@pytest.mark.parametrize(
    ("schedule", "values", "told"),
    [
        (Arrivals, {"stay": 0}, "arrivals.stay=0 must be at least 1"),
        (Arrivals, {"every": 0}, "arrivals.every=0 must be at least 1"),
        (Arrivals, {"visits": 0}, "arrivals.visits=0 must be at least 1"),
        (Churn, {"join": 1.5}, "churn.join=1.5 must lie between 0 and 1"),
        (Churn, {"leave": -1}, "churn.leave=-1 must lie between 0 and 1"),
    ],
)
def test_what_cannot_be_is_told(schedule, values, told):
    with pytest.raises(UserError, match=told):
        schedule(**values)


def test_nobody_ever_there_is_told(domains):
    with pytest.raises(UserError, match="shows no client any domain"):
        build(Churn(join=0.0, leave=1.0), domains, clients=2, slots=1, batch=2, seed=0)


def test_who_joined(domains):
    stream = build(Arrivals(stay=1), domains, clients=2, slots=1, batch=2, seed=0)
    assert [stream.joined(t).tolist() for t in range(2)] == [[False, False], [False, True]]


def test_lateness_is_drawn_once_for_all():
    assert late_uploads((4, 3), 0.0, 3, seed=0) is None
    drawn = late_uploads((400, 5), 0.3, 2, seed=0)
    assert set(np.unique(drawn)) == {0, 1, 2}
    assert (drawn > 0).mean() == pytest.approx(0.3, abs=0.03)
    assert (drawn == late_uploads((400, 5), 0.3, 2, seed=0)).all()
