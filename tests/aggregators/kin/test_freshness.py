"""Statistics of the current batch are told from those that contain older ones."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from fedctta.adapters import adapters
from fedctta.aggregators.kin.freshness import check_fresh
from fedctta.core.clients import by_loop, by_vmap, stack


def batch(*shape):
    return torch.rand(*shape, 10, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "parameters", "expected"),
    [("bn", {}, 1), ("bn", {"momentum": 0.5}, 0), ("norm-ema", {}, 0), ("grad", {}, 0)],
)
def test_statistics_of_this_batch_are_recognised(tiny_network, name, parameters, expected):
    adapter, x = adapters.create(name, parameters), batch()
    client = adapter.adapt(tiny_network, adapter.init(tiny_network), x)
    assert check_fresh(tiny_network, client, x).item() == expected


@pytest.mark.parametrize("lift", [by_vmap, by_loop])
def test_recognition_can_be_lifted(tiny_network, lift):
    x, adapter = batch(2), adapters.create("bn")
    clients = lift(partial(adapter.adapt, tiny_network))(stack(adapter.init(tiny_network), 2), x)
    clients.own["1.running_mean"][1] += 1
    assert lift(partial(check_fresh, tiny_network))(clients, x).tolist() == [1, 0]
