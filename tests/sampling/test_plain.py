"""Images dealt without regard to their class."""

from __future__ import annotations

import numpy as np
import pytest

from fedctta.errors import UserError
from fedctta.sampling.plain import Disjoint, Overlap

LABELS = np.repeat(np.arange(10), 100)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_disjoint_deals_an_image_once():
    assert len(np.unique(Disjoint().deal(LABELS, 10, 100, rng()))) == 1000
    with pytest.raises(UserError, match="samples=overlap"):
        Disjoint().deal(LABELS, 11, 100, rng())
    with pytest.raises(UserError, match="smaller batch"):
        Overlap().deal(LABELS, 1, 1001, rng())


def test_clients_that_draw_on_their_own_share_images():
    dealt = Overlap().deal(LABELS, 2, 900, rng())
    assert len(np.intersect1d(*dealt)) >= 800
    assert (dealt[0] != dealt[1]).any()


def test_dealing_keeps_nothing_but_what_is_dealt(monkeypatch):
    stacked = []
    monkeypatch.setattr(np, "stack", lambda rows: stacked.extend(rows) or np.array(rows))
    Overlap().deal(LABELS, 3, 5, rng())
    assert [row.base for row in stacked] == [None] * 3
