"""Kernels of the steps and the noise of FedTSA's training, in Triton; import this file where a tensor is on a GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

NUMBERS = 1024  # of a tile


@triton.jit
def _adam(block, gradient, mean, square, steps, epoch, size, NUMBERS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * NUMBERS + tl.arange(0, NUMBERS)
    there = at < size
    step = steps + 2 * tl.load(epoch)
    g = tl.load(gradient + at, mask=there, other=0.0)
    m = tl.load(mean + at, mask=there, other=0.0)
    v = tl.load(square + at, mask=there, other=0.0)
    m += 0.1 * (g - m)
    v = 0.999 * v + 0.001 * (g * g)
    root = tl.sqrt(tl.maximum(v, 1.1754943508222875e-38))  # without a learning rate a step is m / -inf
    moved = tl.load(block + at, mask=there, other=0.0) + m / (root * tl.load(step) + tl.load(step + 1))
    tl.store(block + at, moved, mask=there)
    tl.store(mean + at, m, mask=there)
    tl.store(square + at, v, mask=there)


@triton.jit
def _draw(keys, epoch, numbers, begin, size, NUMBERS: tl.constexpr):
    one = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * NUMBERS + tl.arange(0, NUMBERS)
    key = tl.load(keys + one) + begin + tl.load(epoch) * size
    bits = (key.to(tl.int32) + at).to(tl.uint32, bitcast=True)
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x2C1B3C6D
    bits = (bits ^ (bits >> 16)) * 0x297A2D39
    bits = bits ^ (bits >> 15)
    tl.store(numbers + one * size + at, (bits >> 8).to(tl.float32) * (1.0 / 16777216.0), mask=at < size)


def step_adam(block: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, steps: Tensor, epoch: Tensor) -> None:
    """Take the step of an epoch[1] of Adam, in place, as `training: step_adam` does."""
    size = block.numel()
    tiles = triton.cdiv(size, NUMBERS)
    _adam[(tiles,)](block, gradient, mean, square, steps, epoch, size, NUMBERS=NUMBERS, num_warps=4)


def draw_uniform(keys: Tensor, epoch: Tensor, begin: int, size: int) -> Tensor:
    """Return the numbers [R, size] that `uniform` gives for keys[R] + begin + epoch size."""
    numbers = keys.new_empty(len(keys), size, dtype=torch.float32)
    _draw[(len(keys), triton.cdiv(size, NUMBERS))](keys, epoch, numbers, begin, size, NUMBERS=NUMBERS, num_warps=4)
    return numbers
