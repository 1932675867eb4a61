from __future__ import annotations

import pytest
import torch
from torch import nn

from fedctta.core.network import Network
from fedctta.core.norms import refreshed
from fedctta.errors import UserError
from fedctta.models import build
from fedctta.models.unet import UNet


def test_normalisation_channels_in_order():
    channels = [m.num_features for m in UNet().modules() if isinstance(m, nn.BatchNorm2d)]
    assert channels == [16, 16, 32, 32, 64, 64, 32, 32, 16, 16]


@pytest.mark.parametrize(("height", "width"), [(4, 4), (12, 20), (48, 32)])
def test_every_pixel_gets_logits(height, width):
    assert build("unet", 3).eval()(torch.rand(2, 3, height, width)).shape == (2, 3, height, width)


@pytest.mark.parametrize("shape", [(30, 32), (32, 33)])
def test_sides_that_cannot_be_halved_twice(shape):
    with pytest.raises(UserError, match=f"{shape[0]} x {shape[1]}: resize them to multiples of 4"):
        build("unet", 3)(torch.rand(1, 3, *shape))


def test_levels_join_on_the_way_up():
    network = build("unet", 3).eval()
    x = torch.rand(1, 3, 16, 16)
    nn.init.zeros_(network.up_top[0].weight[:, :32])  # deaf to the lower levels
    before = network(x)
    nn.init.zeros_(network.bottom[0].weight)
    assert torch.equal(network(x), before)
    nn.init.zeros_(network.top[0].weight)
    assert not torch.equal(network(x), before)


def test_batch_statistics_reach_every_layer():
    network = Network(build("unet", 3))
    output = network({}, torch.rand(2, 3, 16, 16), refreshed())
    assert len(network.norms) == 10
    assert all(not torch.equal(output.statistics[name], source) for name, source in network.statistics.items())
    assert network.classifier == "head"
