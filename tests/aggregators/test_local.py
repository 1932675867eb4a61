"""No collaboration."""

from __future__ import annotations

import torch

from fedctta.aggregators import Uploads
from fedctta.aggregators.local import Local


def test_everybody_keeps_their_own():
    weights, _ = Local().collaborate(None, Uploads({}, {}, torch.ones(3, dtype=torch.bool)), {})
    assert weights.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert not Local.communicates
