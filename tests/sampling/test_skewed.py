"""Images dealt with skewed classes."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from fedctta.errors import UserError
from fedctta.sampling import samplers
from fedctta.sampling.skewed import Dirichlet, FewClasses, LongTail

LABELS = np.repeat(np.arange(10), 100)


def rng(seed=0):
    return np.random.default_rng(seed)


def class_counts(dealt):
    return np.stack([np.bincount(LABELS[row], minlength=10) for row in dealt])


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


@pytest.mark.parametrize(("name", "wrong"), [("dirichlet", {"delta": 0.0}), ("longtail", {"ratio": 2.0})])
def test_wrong_parameters_are_refused(name, wrong):
    with pytest.raises(UserError, match=f"{name}.{next(iter(wrong))}"):
        samplers.create(name, wrong)


def test_a_client_sees_few_classes_equally_often():
    counts = class_counts(FewClasses(3).deal(LABELS, 30, 90, rng()))
    assert ((counts == 30) | (counts == 0)).all()
    assert ((counts > 0).sum(1) == 3).all()
    assert len(np.unique((counts > 0) @ 2 ** np.arange(10))) > 10  # each client has its own
    with pytest.raises(UserError, match=r"few\.classes=11 is more than the 10"):
        FewClasses(11).deal(LABELS, 2, 10, rng())
