"""Fused normalisation: plain torch where there are no kernels, and the kernels against plain torch on a GPU."""

from __future__ import annotations

import pytest
import torch

from fedctta.core import fused_norms
from fedctta.core.fused_norms import normalise_blended, normalise_fused, scale_and_shift
from fedctta.core.gpu_kernels import can_fuse
from fedctta.core.rectified_gradients import widen

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


def blend(shape, given, device, top=None):
    """Normalise images of two clients with three shares each, of one layer of several that lie side by side."""
    generator = torch.Generator().manual_seed(0)
    channels = shape[2]
    x = (3 * torch.rand(*shape[:2], *shape[3:], channels, generator=generator) + 1).movedim(-1, 2).to(device)
    wide = torch.rand(shape[0], 4 * channels, generator=generator).to(device)
    origin, least, weight, bias = torch.rand(4, channels, generator=generator).to(device).unbind()
    weight, bias = weight if given else None, bias if given else None
    shift, rest = wide[:, channels : 2 * channels], 5 * wide[:, 2 * channels : 3 * channels]
    shares = torch.tensor([0.0, 0.5, 1.0], device=device)

    def of_client(x, shift, rest):
        def with_share(share):
            return normalise_blended(x, origin, (share * shift, rest, least), share, weight, bias, 1e-3, top)

        return torch.func.vmap(with_share)(shares)

    with torch.no_grad():
        found = torch.func.vmap(of_client)(x, shift, rest)
    return (x, origin, shift, rest, least, weight, bias, shares), found


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 12, 4, 4), (2, 3, 70, 9, 9), (2, 4, 8, 33, 33), (1, 1, 3, 1, 70)])
@pytest.mark.parametrize("kernels", [False, pytest.param(True, marks=pytest.mark.triton)])
def test_a_batch_is_normalised_with_a_blend_of_statistics(shape, given, kernels, monkeypatch):
    """By one kernel or, of many rows, by three."""
    monkeypatch.setattr(fused_norms, "can_fuse", lambda *_: kernels)
    device = "cuda" if kernels and torch.cuda.is_available() else "cpu"
    (x, origin, shift, rest, least, weight, bias, shares), (y, mean, var) = blend(shape, given, device)
    over = (1, *range(3, x.dim()))
    expected = torch.var_mean(x.double(), over, correction=0)
    for k, share in enumerate(shares.tolist()):
        torch.testing.assert_close(mean[:, k].double(), expected[1], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(var[:, k].double(), expected[0], atol=1e-5, rtol=1e-5)
        apart = expected[1] - origin
        first = share * shift + share * apart
        second = torch.maximum(rest + share * (expected[0] + apart.square()) - first.square(), least)
        scale = (second + 1e-3).rsqrt() * (1 if weight is None else weight)
        new = (x - widen(origin + first, over)) * widen(scale, over)
        new = new if bias is None else new + bias[:, None, None]
        torch.testing.assert_close(y[:, k].double(), new, atol=1e-3, rtol=1e-3)
    assert y.stride(3) == 1 or not kernels  # channels stay last


@pytest.mark.parametrize("top", [0.5, float("inf")])
@pytest.mark.parametrize("shape", [(2, 3, 12, 4, 4), (2, 4, 8, 33, 33)])
@pytest.mark.parametrize("kernels", [False, pytest.param(True, marks=pytest.mark.triton)])
def test_what_is_normalised_may_be_rectified(shape, top, kernels, monkeypatch):
    monkeypatch.setattr(fused_norms, "can_fuse", lambda *_: kernels)
    device = "cuda" if kernels and torch.cuda.is_available() else "cpu"
    plain, found = (blend(shape, True, device, bound)[1] for bound in (None, top))
    assert plain[0].min() < 0 < 0.5 < plain[0].max()
    torch.testing.assert_close(found[0], plain[0].clamp(0, top), atol=0, rtol=0)
    torch.testing.assert_close(found[1:], plain[1:], atol=0, rtol=0)


@pytest.mark.parametrize("kernels", [False, pytest.param(True, marks=pytest.mark.triton)])
@pytest.mark.parametrize("side", [5, 65])
def test_numbers_of_16_bits_are_computed_in_full(side, kernels, monkeypatch):
    monkeypatch.setattr(fused_norms, "can_fuse", lambda *_: kernels)
    device = "cuda" if kernels and torch.cuda.is_available() else "cpu"
    x = (torch.rand(2, 2, side, side, 4, generator=torch.Generator().manual_seed(0)) + 3).movedim(-1, 2).to(device)
    terms = [torch.rand(4, device=device) for _ in range(3)]
    share = torch.tensor(0.7, device=device)

    def normalise(x):
        return normalise_blended(x, terms[0], tuple(terms), share, None, None, 1e-3)

    with torch.no_grad():
        y, *found = torch.func.vmap(normalise)(x.bfloat16())
        z, *expected = torch.func.vmap(normalise)(x.bfloat16().float())
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), z, atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
