"""Normalisation with a batch's own statistics, against the same in single steps."""

from __future__ import annotations

from functools import partial
from math import inf

import pytest
import torch

from fedctta.core import gpu_kernels
from fedctta.core import network as networks
from fedctta.core.batch_normalisation import normalise_by_batch
from fedctta.core.network import Network
from fedctta.core.norms import refreshed, training
from fedctta.models import build

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SMALL = [(3, 4, 24, 5, 7), (5, 3, 3, 9, 9), (1, 2, 4, 48, 48)]
LARGE = [(20, 10, 64, 16, 16), (8, 10, 96, 64, 64), (20, 10, 256, 2, 2)]
SHAPES = [pytest.param(shape, marks=pytest.mark.triton) for shape in SMALL] + [
    pytest.param(shape, marks=pytest.mark.gpu) for shape in LARGE
]
TOPS = [None, 0.8, inf]


def by_steps(x, weight, bias, eps, top=None):
    """Compute the same by torch's own functions."""
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
    mean_, var_, weight, bias = (each[:, None, None] for each in (mean, var, weight, bias))
    y = (x - mean_) / (var_ + eps).sqrt() * weight + bias
    return y if top is None else y.clamp(max=top).relu(), mean, var


def gradients(function, top, x, weight, bias):
    """Pull back gradients of all three results; that of y lies in memory as x does, as it comes from a convolution."""

    def of_client(*tensors):
        *arguments, of_y, of_mean, of_var = tensors
        return torch.func.vjp(partial(function, eps=1e-3, top=top), *arguments)[1]((of_y, of_mean, of_var))

    return torch.func.vmap(of_client)(x, weight, bias, (x - 5).sin(), weight.cos(), bias.sin())


def draw(shape, order="clients", dtype=torch.float32):
    """Return images[N, B, C, H, W], channels last, client after client or side by side, weights and biases."""
    n, b, c, h, w = shape
    generator = torch.Generator().manual_seed(0)
    sizes, axes = ((n, b, h, w, c), (0, 1, 4, 2, 3)) if order == "clients" else ((b, h, w, n, c), (3, 0, 4, 1, 2))
    x = torch.randn(sizes, generator=generator, dtype=dtype).permute(axes)
    weight, bias = torch.randn(2, n, c, generator=generator, dtype=dtype).to(DEVICE).unbind()
    return (3 * x + 5).to(DEVICE), weight, bias


@pytest.mark.parametrize("top", TOPS)
def test_first_and_second_gradients_are_those_of_the_formula(top):
    x, weight, bias = (each[0].requires_grad_() for each in draw((1, 3, 4, 3, 3), dtype=torch.float64))
    function = partial(normalise_by_batch, eps=1e-3, top=top)
    assert torch.autograd.gradcheck(function, (x, weight, bias))
    assert torch.autograd.gradgradcheck(function, (x, weight, bias))


@pytest.mark.parametrize("top", TOPS)
def test_without_kernels_it_is_the_same_in_single_steps(top):
    arguments = draw((3, 2, 4, 5, 5), dtype=torch.float64)
    found = torch.func.vmap(partial(normalise_by_batch, eps=1e-3, top=top))(*arguments)
    torch.testing.assert_close(found, torch.func.vmap(partial(by_steps, eps=1e-3, top=top))(*arguments))
    found = gradients(normalise_by_batch, top, *arguments)
    torch.testing.assert_close(found, gradients(by_steps, top, *arguments))


@pytest.mark.parametrize("top", [None, 0.8])
@pytest.mark.parametrize("order", ["clients", "common"])
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_give_the_gradients_of_plain_torch(shape, order, top, monkeypatch):
    from fedctta.core import batch_normalisation_kernels

    arguments, calls = draw(shape, order), []
    kernels = batch_normalisation_kernels.pull_back_by_batch
    monkeypatch.setattr(batch_normalisation_kernels, "pull_back_by_batch", lambda *a: calls.append(a) or kernels(*a))
    found = gradients(normalise_by_batch, top, *arguments)
    assert len(calls) == 1
    assert found[0].stride() == arguments[0].stride()
    monkeypatch.setattr(gpu_kernels, "has_kernels", lambda: False)
    expected = gradients(normalise_by_batch, top, *(each.double() for each in arguments))
    for one, other in zip(found, expected, strict=True):
        apart = (one - other).abs() > 2e-4 * float(other.abs().max()) + 1e-3 * other.abs()
        # rounding may carry one number in a million across a rectifier's edge
        assert apart.float().mean() <= (0 if top is None else 2e-6)


@pytest.mark.triton
@pytest.mark.parametrize("rule", [refreshed(), training(0.1)])
def test_a_network_uses_it_for_its_gradients(rule, monkeypatch):
    """All layers of ResNet-8; gradients and kept statistics are those without kernels."""
    torch.manual_seed(0)
    model = build("resnet8-w16", 10).eval()
    x = torch.rand(2, 4, 16, 16, 3).movedim(-1, 2).to(DEVICE)
    calls = []

    def spy(*arguments):
        calls.append(arguments[-1])
        return normalise_by_batch(*arguments)

    monkeypatch.setattr(networks, "normalise_by_batch", spy)

    def slopes():
        network = Network(model, DEVICE)
        own = {name: torch.stack([network.state[name]] * 2) for name in (*network.affine, *network.statistics)}

        def of(own, x):
            output = network(own, x, rule)
            return output.logits.square().mean(), output.statistics

        for _ in range(2):  # watched, and rectified
            found = torch.func.vmap(torch.func.grad(of, has_aux=True))(own, x)
        return found

    found = slopes()
    assert inf in calls
    count = len(calls)
    monkeypatch.setattr(gpu_kernels, "has_kernels", lambda: False)
    expected = slopes()
    assert len(calls) == count
    for one, other in zip(found, expected, strict=True):
        for name, value in other.items():
            torch.testing.assert_close(one[name], value, atol=2e-3 * float(value.abs().max()) + 1e-6, rtol=1e-2)
