"""Noise drawn for many epochs at once is that of each alone."""

from __future__ import annotations

import math

import pytest
import torch

from fedctta.aggregators.fedtsa import noise as noise_module
from fedctta.aggregators.fedtsa.noise import choose_epochs_at_once, count_numbers, prepare_noise
from fedctta.aggregators.fedtsa.training import Training

PAPER, CODE = Training(30, 1e-2, 1.0, code=False), Training(30, 1e-2, 0.5, code=True)


@pytest.mark.parametrize("how", [PAPER, CODE], ids=["paper", "code"])
@pytest.mark.parametrize("rounds", [(), (2,)], ids=["one round", "two rounds"])
def test_noise_drawn_in_parts_is_the_same(how, rounds, monkeypatch):
    key = torch.arange(5, 5 + math.prod(rounds)).reshape(rounds)
    whole = prepare_noise(key, 4, 3, how)
    seven_epochs = 7 * math.prod(rounds) * count_numbers(4, 3, how)  # of 30
    monkeypatch.setattr(noise_module, "MANY", seven_epochs)
    parts = prepare_noise(key, 4, 3, how)
    for epoch in (0, 6, 7, 29, 3):
        for one, other in zip(whole(epoch), parts(epoch), strict=True):
            assert torch.equal(one, other)
    assert whole(0).temporal.shape == (*rounds, 4, 3, 3)
    assert not torch.equal(whole(0).spatial, whole(1).spatial)


def test_as_many_epochs_are_drawn_at_once_as_fit(monkeypatch):
    monkeypatch.setattr(noise_module, "MANY", 100)
    assert [choose_epochs_at_once(each, PAPER) for each in (1, 10, 40, 1000)] == [30, 10, 2, 1]


def test_without_a_masked_pass_there_is_no_noise():
    assert prepare_noise(torch.tensor(0), 4, 3, PAPER._replace(lam=0.0)) is None
