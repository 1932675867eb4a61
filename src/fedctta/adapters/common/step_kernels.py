"""Kernels that change all numbers of a client's weights in one pass on a GPU, in Triton.

Import this file where a tensor is on a GPU, and nowhere else. Rows are those of clients, one after another in memory,
each in an order of its own, the same for all tensors.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

NUMBERS = 1024  # of a tile


@triton.jit
def _adam(
    weight, slope, first, second, scale1, scale2, new_weight, new_first, new_second, size, lr, rest1, rest2,
    NUMBERS: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(0)
    at = tl.program_id(1) * NUMBERS + tl.arange(0, NUMBERS)
    there = at < size
    at += client * size
    g = tl.load(slope + at, mask=there, other=0.0)
    m = tl.load(first + at, mask=there, other=0.0)
    v = tl.load(second + at, mask=there, other=0.0)
    m = m - (m - g) * rest1
    v = v - (v - g * g) * rest2
    step = lr * m / tl.load(scale1 + client) / (tl.sqrt(v / tl.load(scale2 + client)) + 1e-8)
    tl.store(new_weight + at, tl.load(weight + at, mask=there, other=0.0) - step, mask=there)
    tl.store(new_first + at, m, mask=there)
    tl.store(new_second + at, v, mask=there)


@triton.jit(do_not_specialize=["channels", "height", "width"])
def _restore(weight, source, keys, new, size, channels, height, width, share, NUMBERS: tl.constexpr):
    client = tl.program_id(0)
    at = tl.program_id(1) * NUMBERS + tl.arange(0, NUMBERS)
    there = at < size
    pixel = at // channels
    number = ((pixel // (height * width)) * channels + at % channels) * (height * width) + pixel % (height * width)
    bits = (tl.load(keys + client).to(tl.int32) + number).to(tl.uint32, bitcast=True)
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x2C1B3C6D
    bits = (bits ^ (bits >> 16)) * 0x297A2D39
    bits = bits ^ (bits >> 15)
    chance = (bits >> 8).to(tl.float32) * (1.0 / 16777216.0)
    old = tl.load(source + at, mask=there, other=0.0)
    now = tl.load(weight + client * size + at, mask=there, other=0.0)
    tl.store(new + client * size + at, tl.where(chance < share, old, now), mask=there)


def adam(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor],
    scales: tuple[Tensor, Tensor],
    new: tuple[Tensor, Tensor, Tensor],
    rates: tuple[float, float, float],
) -> None:
    """Write weights, first and second moments after a step of Adam.

    The tensors are weights, slopes and both moments; there is a pair of scales for every row; the rates are lr,
    1 - beta1 and 1 - beta2.
    """
    rows = scales[0].numel()
    size = tensors[0].numel() // rows
    _adam[(rows, triton.cdiv(size, NUMBERS))](*tensors, *scales, *new, size, *rates, NUMBERS=NUMBERS, num_warps=4)


def restore(weight: Tensor, source: Tensor, keys: Tensor, new: Tensor, share: float) -> None:
    """Write the weights with every number set back to the source's with probability `share`.

    The source is a vector, or a kernel[O, C, h, w] with channels last; a number's chance is that of its place in the
    usual order.
    """
    channels, height, width = source.shape[1:] if source.dim() == 4 else (1, 1, 1)
    size = source.numel()
    _restore[(keys.numel(), triton.cdiv(size, NUMBERS))](
        weight, source, keys, new, size, channels, height, width, share, NUMBERS=NUMBERS, num_warps=4
    )
