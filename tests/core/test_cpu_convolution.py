"""Kernels of clients on a CPU: few pixels and many, own kernels and one that all hold, give torch's own gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fedctta.core.convolution import Form, convolve
from fedctta.core.cpu_convolution import FEW_PIXELS, convolve_each

DOUBLE = {"dtype": torch.float64}


def last(tensor):
    """Lay out a tensor [..., C, H, W] with channels last."""
    return tensor.movedim(-3, -1).contiguous().movedim(-1, -3)


def total(convolution, x, kernel):
    """A number that depends on every output."""
    return convolution(x, kernel).sin().sum()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("size", [4, 20])
@pytest.mark.parametrize(
    ("stride", "padding", "groups"), [((1, 1), (1, 1), 1), ((2, 1), (0, 2), 1), ((1, 2), (1, 0), 2)]
)
def test_gradients_of_clients(shared, size, stride, padding, groups):
    torch.manual_seed(0)
    form = Form(stride, padding, (1, 1), groups)
    x = last(torch.randn(3, 2, 4, size, size, **DOUBLE))
    kernel = last(torch.randn(1 if shared else 3, 6, 4 // groups, 3, 3, **DOUBLE)).expand(3, -1, -1, -1, -1)
    both = torch.func.grad(total, argnums=(1, 2))

    def ours(x, kernel):
        return both(lambda x, k: convolve(x, k, form), x, kernel)

    def torchs(x, kernel):
        return both(lambda x, k: F.conv2d(x, k, None, stride, padding, 1, groups), x, kernel)

    pixels = convolve_each(x, kernel, form)[0, :, 0].numel()
    assert (pixels <= FEW_PIXELS) == (size == 4)
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
