"""Tent against torch's own BatchNorm and Adam, and on other normalisation layers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fedctta.adapters.tent import Tent
from fedctta.core.network import Network
from fedctta.errors import UserError


def batches(count=3, size=6):
    return torch.rand(count, size, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_steps_equal_those_of_torch(tiny_module):
    network, adapter = Network(tiny_module), Tent(lr=1e-2)
    model = copy.deepcopy(tiny_module).train()
    norm = model[1]
    optimiser = torch.optim.Adam(norm.parameters(), lr=1e-2)
    client = adapter.init(network)
    for x in batches():
        client = adapter.adapt(network, client, x)
        p = model(x).softmax(1)
        loss = -(p * p.log()).sum(1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    torch.testing.assert_close(client.own["1.weight"], norm.weight.detach(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(client.own["1.bias"], norm.bias.detach(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(adapter.predict(network, client, x), model(x).detach(), rtol=1e-4, atol=1e-5)


def test_only_scales_and_shifts_travel(tiny_network):
    assert list(Tent().init(tiny_network).own) == ["1.weight", "1.bias"]


@pytest.mark.parametrize("norm", [lambda: nn.GroupNorm(2, 4), lambda: nn.LayerNorm([4, 8, 8])])
def test_other_normalisation_layers_work_and_take_single_images(norm):
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), norm(), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 3))
    network, adapter = Network(model), Tent()
    adapter.check(network, batch=1)
    client = adapter.init(network)
    changed = adapter.adapt(network, client, batches(1, 1)[0])
    assert client.own.keys() == {"1.weight", "1.bias"}
    assert not torch.equal(changed.own["1.weight"], client.own["1.weight"])


def test_what_cannot_be_adapted_is_told(tiny_network):
    with pytest.raises(UserError, match="batch=1 gives adapter 'tent' no batch statistics"):
        Tent().check(tiny_network, 1)
    with pytest.raises(UserError, match=r"'tent' trains scales of normalisation layers .* use adapter none, .*grad, "):
        Tent().check(Network(nn.Linear(3, 3)), 8)
