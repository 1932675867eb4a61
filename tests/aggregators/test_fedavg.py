"""Uniform averaging."""

from __future__ import annotations

import torch

from fedctta.aggregators import Uploads
from fedctta.aggregators.common.mixing import mix
from fedctta.aggregators.fedavg import FedAvg


def test_everybody_receives_the_mean():
    own = {"a": torch.tensor([1.0, 2.0, 6.0, 3.0])}
    weights, _ = FedAvg().collaborate(None, Uploads(own, {}, torch.ones(4, dtype=torch.bool)), {})
    assert weights.matrix().tolist() == [[0.25] * 4] * 4
    assert mix(weights, own)["a"].tolist() == [3.0] * 4
