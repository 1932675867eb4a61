"""Who sees which images: counts by class, disjointness, bursts."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedctta.errors import UserError
from fedctta.sampling import by_proportions, in_bursts, samplers
from fedctta.sampling.plain import Disjoint, Overlap
from fedctta.sampling.skewed import Dirichlet, LongTail

LABELS = np.repeat(np.arange(10), 100)
FORMS = [Disjoint(), Overlap(), Dirichlet(0.005), Dirichlet(1.0), Dirichlet(inf), LongTail(0.01)]


def rng(seed=0):
    return np.random.default_rng(seed)


def class_counts(dealt):
    return np.stack([np.bincount(LABELS[row], minlength=10) for row in dealt])


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


def test_disjoint_deals_an_image_once():
    assert len(np.unique(Disjoint().deal(LABELS, 10, 100, rng()))) == 1000
    with pytest.raises(UserError, match="samples=overlap"):
        Disjoint().deal(LABELS, 11, 100, rng())
    with pytest.raises(UserError, match="smaller batch"):
        Overlap().deal(LABELS, 1, 1001, rng())


def test_delta_sets_the_skew():
    def largest(delta):
        return (class_counts(Dirichlet(delta).deal(LABELS, 50, 100, rng())).max(1) / 100).mean()

    top = {delta: largest(delta) for delta in (0.01, 0.1, 1, inf)}
    assert top[0.01] > 0.9 > top[0.1] > top[1] > top[inf] > 0.099


def test_clients_have_skews_of_their_own():
    major = class_counts(Dirichlet(0.01).deal(LABELS, 50, 100, rng())).argmax(1)
    assert len(np.unique(major)) > 5


def test_a_long_tail_is_the_same_for_all():
    counts = class_counts(LongTail(0.01).deal(LABELS, 4, 1000, rng()))
    assert (counts == counts[0]).all()
    ranked = np.sort(counts[0])[::-1]
    assert ranked[0] / ranked[-1] == pytest.approx(100, rel=0.5)
    assert (ranked[:-1] >= ranked[1:]).all()


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


def test_dealing_keeps_nothing_but_what_is_dealt(monkeypatch):
    stacked = []
    monkeypatch.setattr(np, "stack", lambda rows: stacked.extend(rows) or np.array(rows))
    Overlap().deal(LABELS, 3, 5, rng())
    assert [row.base for row in stacked] == [None] * 3


@pytest.mark.parametrize("sampler", FORMS, ids=str)
def test_in_bursts_every_class_comes_once(sampler):
    dealt = sampler.deal(LABELS, 6, 100, rng())
    burst = in_bursts(dealt, LABELS, rng(1))
    assert (np.sort(burst, 1) == np.sort(dealt, 1)).all()
    for row in LABELS[burst]:
        assert (np.diff(row) != 0).sum() + 1 == len(np.unique(row))
    first = LABELS[burst[:, 0]]
    assert isinstance(sampler, Dirichlet) or len(np.unique(first)) > 1


@pytest.mark.parametrize(("name", "wrong"), [("dirichlet", {"delta": 0.0}), ("longtail", {"ratio": 2.0})])
def test_wrong_parameters_are_refused(name, wrong):
    with pytest.raises(UserError, match=f"{name}.{next(iter(wrong))}"):
        samplers.create(name, wrong)
