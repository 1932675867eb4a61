"""Kernels that measure and normalise, against plain torch."""

from __future__ import annotations

from functools import partial
from math import inf

import pytest
import torch

from fedctta.core import gpu_kernels
from fedctta.core.fused_norms import fused_moments
from fedctta.core.gpu_kernels import has_kernels
from fedctta.core.moments import moments
from fedctta.core.norm_layers import batch_norm, scale_and_shift

OVER = (1, 3, 4)  # of [N, B, C, H, W]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SMALL = [(3, 4, 24, 5, 7), (5, 3, 3, 9, 9), (1, 2, 4, 48, 48)]
LARGE = [(20, 10, 64, 16, 16), (20, 10, 256, 2, 2), (2, 10, 32, 64, 64)]  # minutes without a GPU
SHAPES = [pytest.param(shape, marks=pytest.mark.triton) for shape in SMALL] + [
    pytest.param(shape, marks=pytest.mark.gpu) for shape in LARGE
]


def images(shape, order, device="cpu"):
    """Return x[N, B, C, H, W] in one of the engine's orders, with a mean far from 0."""
    n, b, c, h, w = shape
    generator = torch.Generator().manual_seed(0)
    if order == "clients":
        x = torch.randn(n, b, h, w, c, generator=generator).permute(0, 1, 4, 2, 3)
    else:
        x = torch.randn(b, h, w, n, c, generator=generator).permute(3, 0, 4, 1, 2)
    return (3 * x + 50).to(device)


def vectors(count, channels, device="cpu"):
    """Return scales and shifts [N, C]."""
    return torch.randn(2, count, channels, generator=torch.Generator().manual_seed(1)).to(device).unbind()


def pull_back(x, weight, bias, gradient, top):
    """Return the gradients through moments and what they normalise; the given one lies in memory as x does."""

    def normalise(x, weight, bias):
        mean, var = moments(x, (0, 2, 3))
        return batch_norm(x, mean, var, weight, bias, 1e-5, top)

    return torch.func.vjp(normalise, x, weight, bias)[1](gradient)


@pytest.mark.parametrize("order", ["clients", "common"])
@pytest.mark.parametrize("shape", SHAPES)
class TestKernels:
    def test_moments_are_as_exact_as_torchs_and_the_same_each_time(self, shape, order):
        assert has_kernels()
        x = images(shape, order, DEVICE)
        for over in (OVER, (3, 4)):
            expected = torch.var_mean(x.double(), dim=over, correction=0)[::-1]
            found, again = fused_moments(x, over), fused_moments(x, over)
            for one, other, value in zip(found, again, expected, strict=True):
                assert torch.equal(one, other)
                torch.testing.assert_close(one.double(), value, atol=1e-5, rtol=3e-6)

    def test_normalised_images_keep_their_order(self, shape, order):
        x, (weight, bias) = images(shape, order, DEVICE), vectors(shape[0], shape[2], DEVICE)
        mean, var = fused_moments(x, OVER)
        with torch.no_grad():
            y = torch.func.vmap(lambda x, m, v, b: batch_norm(x, m, v, weight[0], b, 1e-5))(x, mean, var, bias)
        assert y.stride() == x.stride()
        centred = x.double() - mean.double()[:, None, :, None, None]
        scale = (var.double() + 1e-5).rsqrt() * weight[0].double()
        expected = centred * scale[:, None, :, None, None] + bias.double()[:, None, :, None, None]
        torch.testing.assert_close(y.double(), expected, atol=1e-4, rtol=1e-4)

    def test_they_may_be_rectified(self, shape, order):
        x, (scale, shift) = images(shape, order, DEVICE) - 50, vectors(shape[0], shape[2], DEVICE)
        for normalise in (scale_and_shift, lambda x, a, b, top=None: batch_norm(x, b, a.exp(), a, b, 1e-5, top)):
            with torch.no_grad():
                plain = torch.func.vmap(normalise)(x, scale, shift)
                for top in (2.0, inf):
                    found = torch.func.vmap(partial(normalise, top=top))(x, scale, shift)
                    assert found.stride() == x.stride()
                    assert torch.equal(found, plain.clamp(0, top))
            assert plain.min() < 0 < 2 < plain.max()

    @pytest.mark.parametrize("top", [None, 0.8])
    def test_gradients_are_those_of_plain_torch(self, shape, order, top, monkeypatch):
        x, (weight, bias) = images(shape, order, DEVICE), vectors(shape[0], shape[2], DEVICE)
        arguments = x, weight, bias, (x - 50).sin()
        gradient = torch.func.vmap(partial(pull_back, top=top))
        found = gradient(*arguments)
        monkeypatch.setattr(gpu_kernels, "has_kernels", lambda: False)
        expected = gradient(*(each.double() for each in arguments))
        for one, other in zip(found, expected, strict=True):
            apart = (one - other).abs() > 2e-4 * float(other.abs().max()) + 1e-3 * other.abs()
            # rounding may carry one number in a million across a rectifier's edge
            assert apart.float().mean() <= (0 if top is None else 2e-6)
