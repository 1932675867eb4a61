"""FedTSA's block as its published code has it."""

from __future__ import annotations

import torch

from fedctta.aggregators.fedtsa import FedTSA
from fedctta.bench.block import train_block


def test_the_block_weighs_clients_alike_higher():
    x = torch.eye(2)[[0, 0, 1, 1]][:, None].repeat(1, 5, 8) * 3
    weights = train_block(x, FedTSA("code", epochs=5).training)
    assert weights[0, 1] > 2 * weights[0, 2]
