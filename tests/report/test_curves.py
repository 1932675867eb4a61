from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fedctta.report.curves import (
    accuracy_by_domain,
    accuracy_over_time,
    groups,
    mean_over_time,
    shifts,
    spread_out,
    window,
)
from fedctta.results.records import Record

Fake = Callable[..., Record]


def test_smoothing_pools_images_not_rounds(fake: Fake) -> None:
    run = fake(rounds=60, clients=1)  # window: 60 / 30 = 2 rounds
    seen, correct = np.zeros((60, 1), np.int32), np.zeros((60, 1), np.int32)
    seen[10], correct[10] = 30, 30
    seen[11], correct[11] = 10, 0
    curve = accuracy_over_time([replace(run, seen=seen, correct=correct)])
    assert np.isnan(curve[9])
    assert curve[10] == 100
    assert curve[11] == pytest.approx(75)  # 30 of 40
    assert curve[12] == 0
    assert np.isnan(curve[13])


@pytest.mark.parametrize("rounds", [30, 75, 750])
def test_a_step_does_not_show_before_it_happens(fake: Fake, rounds: int) -> None:
    run, step = fake(rounds=rounds, clients=1), rounds // 2
    correct = np.where(np.arange(rounds)[:, None] < step, 2, 9).astype(np.int32)  # of 10
    curve = accuracy_over_time([replace(run, seen=np.full_like(correct, 10), correct=correct)])
    assert curve[:step] == pytest.approx(20)
    assert curve[step] > 20
    assert curve[step + window(rounds) - 1 :] == pytest.approx(90)


def test_seeds_of_different_length_are_pooled(fake: Fake) -> None:
    curve = accuracy_over_time([fake(rounds=4, accuracy=1.0), fake(rounds=2, accuracy=0.0)])
    assert curve.tolist() == [50, 50, 100, 100]


def test_domain_accuracy_is_the_mean_over_seeds(fake: Fake) -> None:
    runs = [fake(rounds=4, accuracy=a, domains=("fog",)) for a in (0.2, 0.4)]
    assert accuracy_by_domain(runs) == {"fog": pytest.approx(30)}


def test_absence_is_not_a_shift() -> None:
    domain = np.array([[-1, 0], [1, -1], [-1, 0], [1, 0], [2, 0]], np.int32)
    assert shifts(domain).tolist() == [4]
    assert shifts(domain[:1]).tolist() == []


def test_groups_are_clients_that_meet_the_same(fake: Fake) -> None:
    run = fake(rounds=3, clients=4)
    domain = np.array([[0, 1, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1]], np.int32)
    first, second = groups(replace(run, domain=domain))
    assert (first.name, second.name) == ("clients 1, 3-4", "client 2")
    assert first.stretches == ((0, 0), (2, 1))
    assert second.stretches == ((0, 1),)


def test_a_client_that_leaves_is_away(fake: Fake) -> None:
    domain = np.array([[0, -1], [0, 2], [-1, 2]], np.int32)
    first, second = groups(replace(fake(rounds=3, clients=2), domain=domain))
    assert first.stretches == ((0, 0), (2, -1))
    assert second.stretches == ((0, -1), (1, 2))


def test_spread_out_keeps_both_ends() -> None:
    assert spread_out(750, 4).tolist() == [0, 250, 499, 749]
    assert spread_out(2, 10).tolist() == [0, 1]
    assert spread_out(0, 10).tolist() == []


def test_a_mean_over_time_leaves_out_what_is_not_known() -> None:
    values = np.full((60, 2), np.nan)  # window: 2 rounds
    values[10], values[11, 0] = (0.2, 0.4), 0.9
    curve = mean_over_time([values, values[:11]])
    assert np.isnan(curve[9])
    assert curve[10:13] == pytest.approx([0.3, (4 * 0.3 + 0.9) / 5, 0.9])
    assert np.isnan(curve[13])
