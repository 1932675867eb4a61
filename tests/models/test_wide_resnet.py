from __future__ import annotations

import pytest
import torch
from torch import nn

from fedctta.models.inputs import Normalise
from fedctta.models.wide_resnet import PreActivationBlock, WideResNet


@pytest.mark.parametrize("outputs", [4, 6])
def test_skip_is_raw_or_a_convolution_of_the_activated_input(outputs):
    block = PreActivationBlock(4, outputs, stride=1).eval()
    nn.init.zeros_(block.conv2.weight)
    x = torch.randn(1, 4, 5, 5)
    expected = x if outputs == 4 else block.skip(torch.relu(block.bn1(x)))
    torch.testing.assert_close(block(x), expected)


def test_normalisation_is_only_inside_where_asked():
    raw, inside = (WideResNet(10, 1, 10, normalise=flag).eval() for flag in (False, True))
    inside.load_state_dict(raw.state_dict())
    assert any(isinstance(m, Normalise) for m in inside.modules())
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(inside(x), raw(2 * x - 1), rtol=1e-4, atol=1e-5)
