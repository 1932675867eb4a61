from __future__ import annotations

import torch
from torch import nn

from fedctta.models.resnet import BasicBlock, conv, projection, resnet8


def test_normalisation_channels_in_order():
    channels = [m.num_features for m in resnet8().modules() if isinstance(m, nn.BatchNorm2d)]
    assert channels == [64, 64, 64, 128, 128, 128, 256, 256, 256]


def test_the_image_shrinks_to_two_by_two():
    network = resnet8(width=16)
    stem = network.stem(torch.rand(1, 3, 32, 32))
    assert stem.shape == (1, 16, 8, 8)
    assert network.blocks(stem).shape == (1, 64, 2, 2)


def test_convolutions_start_from_he_normal():
    torch.manual_seed(0)
    weight = conv(64, 128, 3).weight
    assert abs(weight.std().item() / (2 / (9 * 128)) ** 0.5 - 1) < 0.02


def test_block_adds_the_skip_before_the_last_relu():
    block = BasicBlock(4, 4, stride=1).eval()
    nn.init.zeros_(block.conv2.weight)
    x = torch.randn(1, 4, 5, 5)
    assert isinstance(projection(4, 4, 1), nn.Identity)
    torch.testing.assert_close(block(x), torch.relu(x))
