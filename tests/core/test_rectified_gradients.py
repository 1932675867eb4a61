"""The gradient of a rectifier that is applied with a scale and a shift."""

from __future__ import annotations

from functools import partial
from math import inf

import pytest
import torch

from fedctta.core.fused_norms import scale_and_shift
from fedctta.core.rectified_gradients import pull_back, rectify, widen

OVER = (1, 3, 4)  # of [N, B, C, H, W]


@pytest.mark.parametrize("top", [0.5, float("inf")])
def test_a_rectified_one_has_the_gradient_of_the_formula(top):
    x, (scale, shift) = torch.randn(2, 3, 4, 5, 5).double(), torch.randn(2, 2, 4).double().unbind()

    def scaled(x, scale, shift):
        return scale_and_shift(x, scale, shift, OVER, top)

    y = scaled(x, scale, shift)
    assert torch.equal(y, scale_and_shift(x, scale, shift, OVER).clamp(0, top))
    assert (y == 0).any()
    assert (y == top).any() == (top < 1)
    arguments = [tensor.requires_grad_() for tensor in (x, scale, shift)]
    assert torch.autograd.gradcheck(scaled, arguments)
    assert torch.autograd.gradgradcheck(scaled, arguments)
    assert torch.autograd.gradcheck(partial(scaled, x.detach()), arguments[1:])


def test_by_hand():
    """Two images of one channel: y = 2 x + 1 is -1, 3, 5 and 9."""
    x, one = torch.tensor([-1.0, 1.0, 2.0, 4.0]).view(2, 1, 2), torch.ones(1)
    gradient = torch.tensor([10.0, 20.0, 30.0, 40.0]).view(2, 1, 2)
    of_x, of_scale, of_shift = pull_back(gradient, x, 2 * one, one, 6.0, (0, 2), True)
    assert of_x.flatten().tolist() == [0, 40, 60, 0]
    assert of_scale.item() == 20 * 1 + 30 * 2
    assert of_shift.item() == 50
    assert pull_back(gradient, x, 2 * one, one, inf, (0, 2), False)[0].numel() == 0
    assert pull_back(gradient, x, 2 * one, one, inf, (0, 2), False)[2].item() == 90


def test_rectifiers():
    y = torch.tensor([-1.0, 0.5, 7.0])
    assert rectify(y, None) is y
    assert rectify(y, inf).tolist() == [0, 0.5, 7]
    assert rectify(y, 6.0).tolist() == [0, 0.5, 6]


def test_axes_come_back_with_size_one():
    assert widen(torch.zeros(2, 3), (1, 3)).shape == (2, 1, 3, 1)
