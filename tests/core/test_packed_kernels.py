"""Packed kernels answer as torch's own convolution, and follow their kernel when it changes."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedctta.core import packed_kernels
from fedctta.core.packed_kernels import PackedKernels


@pytest.fixture
def seen(monkeypatch):
    """The inputs of all convolutions with packed kernels."""
    inputs, multiply = [], packed_kernels._multiply
    monkeypatch.setattr(
        packed_kernels, "_multiply", lambda layer, x, *rest: inputs.append(x) or multiply(layer, x, *rest)
    )
    return inputs


def convolve(packed, layer, x):
    with torch.no_grad():
        return packed.convolve("a", layer, x, layer.weight, layer.bias)


def images(count, channels=8, side=6):
    return torch.rand(count, side, side, channels, generator=torch.Generator().manual_seed(count)).movedim(-1, 1)


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("bias", [True, False])
def test_answers_are_torchs(groups, bias):
    layer = nn.Conv2d(8, 16, 3, 2, 1, groups=groups, bias=bias).to(memory_format=torch.channels_last)
    packed = PackedKernels()
    for x in (images(4), images(4), images(30), images(1), images(4).contiguous()):
        torch.testing.assert_close(convolve(packed, layer, x), layer(x).detach())


def test_a_kernel_that_changes_is_packed_again(seen):
    layer, x, packed = nn.Conv2d(8, 16, 3).to(memory_format=torch.channels_last), images(4), PackedKernels()
    convolve(packed, layer, x)
    if packed._known["a"].kernel is None:
        pytest.skip("torch cannot pack kernels here")
    convolve(packed, layer, x)
    assert len(seen) == 2  # once to prove it, once to use it
    with torch.no_grad():
        layer.weight.mul_(2)
    torch.testing.assert_close(convolve(packed, layer, x), layer(x).detach())
    layer.weight = nn.Parameter(layer.weight + 1)
    torch.testing.assert_close(convolve(packed, layer, x), layer(x).detach())


def test_gradients_clients_and_other_precisions_take_the_kernel_as_it_is(seen):
    layer, packed = nn.Conv2d(8, 16, 3), PackedKernels()
    packed.convolve("a", layer, images(4), layer.weight, layer.bias).sum().backward()
    assert layer.weight.grad is not None
    with torch.no_grad():
        torch.func.vmap(lambda x: packed.convolve("a", layer, x, layer.weight, layer.bias))(
            images(4).expand(2, -1, -1, -1, -1)
        )
    convolve(packed, layer.double(), images(4).double())
    assert not seen


def test_a_kernel_with_another_answer_is_not_used(monkeypatch):
    multiply = packed_kernels._multiply
    monkeypatch.setattr(packed_kernels, "_multiply", lambda *of: multiply(*of) + 1e-3)
    layer, packed = nn.Conv2d(8, 16, 3), PackedKernels()
    for _ in range(2):
        torch.testing.assert_close(convolve(packed, layer, images(4)), layer(images(4)).detach())


def test_copies_begin_with_nothing():
    packed = PackedKernels()
    convolve(packed, nn.Conv2d(8, 16, 3), images(4))
    assert packed._known
    assert not copy.deepcopy(packed)._known
    assert not pickle.loads(pickle.dumps(packed))._known


def test_arithmetic_is_counted():
    layer, x, packed = nn.Conv2d(8, 16, 3), images(4), PackedKernels()
    convolve(packed, layer, x)
    with FlopCounterMode(display=False) as counter:
        convolve(packed, layer, x)
    assert counter.get_total_flops() == 2 * 4 * 16 * 4 * 4 * 8 * 9
