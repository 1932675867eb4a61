"""Who sees which images: every sampler, proportions, bursts."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedctta.sampling import by_proportions, in_bursts
from fedctta.sampling.plain import Disjoint, Overlap
from fedctta.sampling.skewed import Dirichlet, LongTail

LABELS = np.repeat(np.arange(10), 100)
FORMS = [Disjoint(), Overlap(), Dirichlet(0.005), Dirichlet(1.0), Dirichlet(inf), LongTail(0.01)]


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("sampler", FORMS, ids=str)
def test_every_client_gets_what_it_needs_the_same_for_a_seed(sampler):
    dealt = sampler.deal(LABELS, 5, 100, rng())
    assert dealt.shape == (5, 100)
    assert dealt.dtype == np.int64
    assert (sampler.deal(LABELS, 5, 100, rng()) == dealt).all()
    assert (sampler.deal(LABELS, 5, 100, rng(1)) != dealt).any()
    assert sampler.share(1000, 5) >= 100


@pytest.mark.parametrize("sampler", FORMS, ids=str)
def test_a_client_sees_an_image_once_while_there_are_enough(sampler):
    for row in sampler.deal(LABELS, 5, 60, rng()):
        assert len(np.unique(row)) == 60


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=10), st.integers(20, 300), st.integers(0, 5))
def test_proportions_are_met_to_a_rounding(weights, need, seed):
    q = np.array(weights) / sum(weights)
    labels = LABELS % len(q)
    counts = np.bincount(labels[by_proportions(labels, q, need, rng(seed))], minlength=len(q))
    assert counts.sum() == need
    others = np.arange(len(q)) != np.argmax(np.round(need * q))
    assert (np.abs(counts - need * q)[others] <= 0.5 + 1e-9).all()


def test_a_class_that_is_used_up_is_drawn_again():
    dealt = by_proportions(LABELS, np.eye(10)[3], 250, rng())
    assert set(LABELS[dealt]) == {3}
    assert np.bincount(dealt, minlength=1000).max() == 3


@pytest.mark.parametrize("sampler", FORMS, ids=str)
def test_in_bursts_every_class_comes_once(sampler):
    dealt = sampler.deal(LABELS, 6, 100, rng())
    burst = in_bursts(dealt, LABELS, rng(1))
    assert (np.sort(burst, 1) == np.sort(dealt, 1)).all()
    for row in LABELS[burst]:
        assert (np.diff(row) != 0).sum() + 1 == len(np.unique(row))
    first = LABELS[burst[:, 0]]
    assert isinstance(sampler, Dirichlet) or len(np.unique(first)) > 1
