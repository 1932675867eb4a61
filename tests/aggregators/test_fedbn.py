"""BatchNorm stays at home."""

from __future__ import annotations

import pytest
import torch

from fedctta.adapters import adapters
from fedctta.aggregators import Uploads
from fedctta.aggregators.common.mixing import mix
from fedctta.aggregators.fedbn import FedBN
from fedctta.core.clients import stack
from fedctta.errors import UserError


def test_scales_shifts_and_statistics_do_not_travel(tiny_network):
    shared = FedBN().shares(tiny_network, stack(dict(tiny_network.state), 2))
    assert set(shared) == {"0.weight", "0.bias", "5.weight", "5.bias"}


def test_the_rest_is_averaged(tiny_network):
    own = {"0.bias": torch.tensor([[1.0], [3.0]]), "1.bias": torch.tensor([[1.0], [3.0]])}
    shared = FedBN().shares(tiny_network, own)
    weights, _ = FedBN().collaborate(None, Uploads(shared, {}, torch.ones(2, dtype=torch.bool)), {})
    assert weights.matrix().tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert {name: tensor.tolist() for name, tensor in mix(weights, shared).items()} == {"0.bias": [[2], [2]]}


def test_with_nothing_to_share_it_says_what_to_use(tiny_network):
    FedBN().check(tiny_network, adapters.create("grad").init(tiny_network).own)
    with pytest.raises(UserError, match="use adapter=grad, or aggregator=local"):
        FedBN().check(tiny_network, adapters.create("bn").init(tiny_network).own)
