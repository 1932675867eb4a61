"""Fused normalisation: plain torch where there are no kernels, and the kernels against plain torch on a GPU."""

from __future__ import annotations

import pytest
import torch

from fedctta.core.fused_norms import (
    blend_fused,
    normalise_fused,
    scale_and_shift,
)
from fedctta.core.gpu_kernels import can_fuse

OVER = (1, 3, 4)  # of [N, B, C, H, W]


def test_on_a_cpu_there_are_no_kernels():
    assert not can_fuse(torch.zeros(1))


def test_the_gradient_is_that_of_the_formula():
    x, (scale, shift) = torch.randn(2, 3, 4, 5, 5).double(), torch.randn(2, 2, 4).double().unbind()

    def scaled(x, scale, shift):
        return scale_and_shift(x, scale, shift, OVER)

    arguments = [tensor.requires_grad_() for tensor in (x, scale, shift)]
    assert torch.autograd.gradcheck(scaled, arguments)
    assert torch.autograd.gradgradcheck(scaled, arguments)
    assert torch.autograd.gradcheck(lambda x, scale: scaled(x, scale, None), arguments[:2])


def test_without_kernels_it_is_the_formula_inside_vmap():
    x, (weight, bias) = 3 * torch.randn(3, 2, 4, 5, 5) + 50, torch.randn(2, 3, 4).unbind()
    mean, var = x.mean(OVER), x.var(OVER, correction=0)
    found = torch.func.vmap(lambda *each: normalise_fused(*each, bias[0], 1e-5))(x, mean, var, weight)
    wide = [v[:, None, :, None, None] for v in (mean, var, weight)]
    expected = (x - wide[0]) * (wide[1] + 1e-5).rsqrt() * wide[2] + bias[0, :, None, None]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def blended(device):
    """Blend three clients' statistics, of one layer of several that lie side by side, with three weights each."""
    generator = torch.Generator().manual_seed(0)
    mean, var, wide = (torch.rand(3, size, generator=generator).to(device) for size in (20, 20, 100))
    origin, least = torch.rand(2, 20, generator=generator).to(device).unbind()

    def of_client(mean, var, wide):
        return torch.func.vmap(
            lambda share: blend_fused(mean, var, origin, share * wide[20:40], wide[60:80], least, share)
        )(torch.tensor([0.0, 0.5, 1.0], device=device))

    with torch.no_grad():
        return (mean, var, origin, wide, least), torch.func.vmap(of_client)(mean, var, wide)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_statistics_are_blended_as_the_formula_says(device):
    (mean, var, origin, wide, least), found = blended(device)
    for k, share in enumerate((0.0, 0.5, 1.0)):
        apart = mean - origin
        first = share * wide[:, 20:40] + share * apart
        second = torch.maximum(wide[:, 60:80] + share * (var + apart.square()) - first.square(), least)
        torch.testing.assert_close(found[0][:, k], origin + first)
        torch.testing.assert_close(found[1][:, k], second)
