"""Statistics mixed and carried, by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fedctta.adapters.norm import DUA, NormAlpha, NormEMA
from fedctta.core.network import Network
from fedctta.errors import UserError


def images(size=6, seed=0):
    return torch.rand(size, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def first_layer(module, x):
    """Mean and biased variance of what the BatchNorm layer reads."""
    read = module[0](x).detach()
    return read.mean((0, 2, 3)), read.var((0, 2, 3), correction=0)


@pytest.mark.parametrize(("parameters", "alpha"), [({"alpha": 0.1}, 0.1), ({"prior": 18}, 6 / 24)])
def test_alpha_mixes_with_the_source_anew_for_every_batch(parameters, alpha, tiny_module):
    network, adapter = Network(tiny_module), NormAlpha(**parameters)
    client = adapter.adapt(network, adapter.init(network), images(seed=1))
    client = adapter.adapt(network, client, images())
    mean, var = first_layer(tiny_module, images())
    torch.testing.assert_close(client.own["1.running_mean"], (1 - alpha) * tiny_module[1].running_mean + alpha * mean)
    torch.testing.assert_close(client.own["1.running_var"], (1 - alpha) * tiny_module[1].running_var + alpha * var)


def test_the_average_is_that_of_training(tiny_module):
    network, adapter, model = Network(tiny_module), NormEMA(), copy.deepcopy(tiny_module).train()
    client = adapter.init(network)
    for seed in range(3):
        client = adapter.adapt(network, client, images(seed=seed))
        model(images(seed=seed))
    torch.testing.assert_close(client.own["1.running_mean"], model[1].running_mean)
    torch.testing.assert_close(client.own["1.running_var"], model[1].running_var)
    torch.testing.assert_close(adapter.predict(network, client, images()), model.eval()(images()).detach())


def test_duas_momentum_fades(tiny_module):
    network, adapter = Network(tiny_module), DUA()
    client, mean = adapter.init(network), tiny_module[1].running_mean
    for t in range(1, 4):
        client = adapter.adapt(network, client, images(seed=t))
        momentum = 0.1 * 0.94**t + 0.005
        mean = (1 - momentum) * mean + momentum * first_layer(tiny_module, images(seed=t))[0]
    torch.testing.assert_close(client.own["1.running_mean"], mean)
    assert client.private["rho"].item() == pytest.approx(0.1 * 0.94**3)


@pytest.mark.parametrize("adapter", [NormAlpha(), NormEMA(), DUA()])
def test_a_single_image_will_do_and_batchnorm_must_be_there(adapter, tiny_network):
    adapter.check(tiny_network, 1)
    client = adapter.adapt(tiny_network, adapter.init(tiny_network), images(1))
    assert all(tensor.isfinite().all() for tensor in client.own.values())
    with pytest.raises(UserError, match=r"needs BatchNorm layers .* roid, sar, .* or tent"):
        adapter.check(Network(nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 3))), 8)


@pytest.mark.parametrize("wrong", [lambda: NormAlpha(alpha=2), lambda: NormEMA(momentum=0), lambda: DUA(decay=-1)])
def test_wrong_parameters_are_refused(wrong):
    with pytest.raises(UserError, match="must"):
        wrong()
