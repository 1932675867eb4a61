"""The two case studies, against the orders the papers print."""

from __future__ import annotations

import numpy as np
import pytest

from fedctta.errors import UserError
from fedctta.streams import build, schedules
from fedctta.streams.cases import FedCTTACase, FedTSACase

FIFTEEN = tuple(f"d{k}" for k in range(15))
FORWARD = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
BACKWARD = [14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
CASES = {
    "case-fedctta": (FedCTTACase, [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0, 1, 2, 3]),
    "case-fedtsa": (FedTSACase, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("slots", [1, 50])
def test_the_three_groups_meet_the_domains_in_the_printed_orders(name, slots):
    case, rotated = CASES[name]
    plan = schedules.create(name).plan(10, FIFTEEN, slots)
    assert type(schedules.create(name)) is case
    assert plan.shape == (15 * slots, 10)
    for clients, order in ((range(0, 4), FORWARD), (range(4, 7), rotated), (range(7, 10), BACKWARD)):
        for client in clients:
            assert np.array_equal(plan[:, client], np.repeat(order, slots))


@pytest.mark.parametrize("name", CASES)
def test_there_are_ten_clients_and_no_others(name):
    case = schedules.create(name)
    assert case.default_clients() == 10
    with pytest.raises(UserError, match="the case studies have 10 clients, not 20: use clients=10"):
        case.plan(20, FIFTEEN, 50)


@pytest.mark.parametrize("name", CASES)
def test_few_domains_are_walked_too(make_domains, name):
    data = make_domains(3, images=40, side=1)
    stream = build(schedules.create(name), data, clients=10, slots=2, batch=2, seed=0)
    assert all(np.array_equal(np.bincount(walk), [2, 2, 2]) for walk in stream.domain.T)
    assert stream.temporal_heterogeneity == pytest.approx(1 / 2)
