"""Kernels of clients on a CPU: few pixels and many, own kernels and one that all hold, give torch's own gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fedctta.core.convolution import Form, convolve
from fedctta.core.cpu_convolution import FEW_PIXELS, FEWER_PIXELS, POINTWISE, convolve_each

DOUBLE = {"dtype": torch.float64}
IMAGES, SIZES = 2, (4, 8, 20)


def last(tensor):
    """Lay out a tensor [..., C, H, W] with channels last."""
    return tensor.movedim(-3, -1).contiguous().movedim(-1, -3)


def total(convolution, x, kernel):
    """A number that depends on every output."""
    return convolution(x, kernel).sin().sum()


def test_sizes_lie_on_both_sides_of_the_limits():
    fewer, few, many = (IMAGES * size**2 for size in SIZES)
    assert fewer <= FEWER_PIXELS < few <= FEW_PIXELS < POINTWISE < many


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("side", [1, 3])
@pytest.mark.parametrize(
    ("stride", "padding", "groups"),
    [((1, 1), (1, 1), 1), ((2, 1), (0, 2), 1), ((1, 2), (1, 0), 2), ((2, 2), (0, 0), 1)],
)
def test_gradients_of_clients(shared, size, side, stride, padding, groups):
    torch.manual_seed(0)
    form = Form(stride, padding, (1, 1), groups)
    x = last(torch.randn(3, IMAGES, 4, size, size, **DOUBLE))
    kernel = last(torch.randn(1 if shared else 3, 6, 4 // groups, side, side, **DOUBLE)).expand(3, -1, -1, -1, -1)
    both = torch.func.grad(total, argnums=(1, 2))

    def ours(x, kernel):
        return both(lambda x, k: convolve(x, k, form), x, kernel)

    def torchs(x, kernel):
        return both(lambda x, k: F.conv2d(x, k, None, stride, padding, 1, groups), x, kernel)

    y = convolve_each(x, kernel, form)
    torch.testing.assert_close(y[1], F.conv2d(x[1], kernel[1], None, stride, padding, 1, groups))
    assert y.movedim(-3, -1).is_contiguous()
    for i, found in enumerate(zip(*torch.func.vmap(ours)(x, kernel), strict=True)):
        torch.testing.assert_close(found, torchs(x[i], kernel[i]))
        torch.testing.assert_close(ours(x[i], kernel[i]), torchs(x[i], kernel[i]))


@pytest.mark.parametrize("shared", [False, True])
def test_channels_stay_last(shared):
    x = last(torch.randn(3, 2, 4, 5, 5))
    kernel = last(torch.randn(1 if shared else 3, 6, 4, 3, 3)).expand(3, -1, -1, -1, -1)
    y = convolve_each(x, kernel, Form((1, 1), (1, 1), (1, 1), 1))
    assert y.movedim(-3, -1).is_contiguous()
    for i in range(3):
        torch.testing.assert_close(y[i], F.conv2d(x[i], kernel[i], None, 1, 1))
