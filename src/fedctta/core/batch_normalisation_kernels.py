"""Kernels of `batch_normalisation`, in Triton; import this file where a tensor is on a GPU, and nowhere else.

Tensors are the groups of rows of channels that `norm_kernels` describes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedctta.core.norm_kernels import (
    COUNTS,
    WARPS,
    WIDE_CHANNELS,
    WIDE_ROWS,
    count_tiles,
    divide_rows,
    find_place,
    in_units,
)
from fedctta.core.rectified_kernels import STEPS
from fedctta.core.rows_of_channels import Rows

# steps of mean, variance, weight and bias, and of the gradients of mean and variance
SMALL = [f"{tensor}g{k}" for tensor in "mvwbed" for k in (1, 2)]


@triton.jit
def _fold(mean, var, weight, bias, eps, c, there):
    """Return mean, 1 / sqrt(var + eps), weight and bias of some channels."""
    m = tl.load(mean + c, mask=there, other=0.0)
    inverse = 1.0 / tl.sqrt(tl.load(var + c, mask=there, other=1.0) + eps)
    return m, inverse, tl.load(weight + c, mask=there, other=0.0), tl.load(bias + c, mask=there, other=0.0)


@triton.jit(do_not_specialize=["part", *COUNTS, *STEPS[:8], *SMALL[:8]])
def _sum_by_batch(
    g, x, mean, var, weight, bias, sums, products, eps, top, part, count, channels, groups2, rows2,
    gg1, gg2, gr1, gr2, xg1, xg2, xr1, xr2, mg1, mg2, vg1, vg2, wg1, wg2, bg1, bg2,
    RECTIFIES: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    channels = channels * UNIT
    tiles = tl.cdiv(channels, CHANNELS)
    group, tile, piece = tl.program_id(0) // tiles, tl.program_id(0) % tiles, tl.program_id(1)
    c = tile * CHANNELS + tl.arange(0, CHANNELS)
    known = c < channels
    end = tl.minimum((piece + 1) * part, count)
    g += find_place(group, groups2, gg1, gg2, UNIT)
    x += find_place(group, groups2, xg1, xg2, UNIT)
    mean += find_place(group, groups2, mg1, mg2, UNIT)
    var += find_place(group, groups2, vg1, vg2, UNIT)
    weight += find_place(group, groups2, wg1, wg2, UNIT)
    bias += find_place(group, groups2, bg1, bg2, UNIT)
    m, inverse, w, b = _fold(mean, var, weight, bias, eps, c, known)
    a = (w * inverse)[None, :]
    s = tl.zeros([ROWS, CHANNELS], tl.float32)
    p = tl.zeros([ROWS, CHANNELS], tl.float32)
    for first in range(piece * part, end, ROWS):
        row = first + tl.arange(0, ROWS)
        there = (row < end)[:, None] & known[None, :]
        one = tl.load(g + find_place(row, rows2, gr1, gr2, UNIT)[:, None] + c[None, :], mask=there, other=0.0)
        apart = tl.load(x + find_place(row, rows2, xr1, xr2, UNIT)[:, None] + c[None, :], mask=there, other=0.0)
        apart = apart - m[None, :]
        if RECTIFIES:
            value = apart * a + b[None, :]
            one = tl.where((value > 0) & (value < top), one, 0.0)
        s += one
        p += one * apart
    to = (piece * (tl.num_programs(0) // tiles) + group) * channels + c
    tl.store(sums + to, tl.sum(s, axis=0), mask=known)
    tl.store(products + to, tl.sum(p, axis=0), mask=known)


@triton.jit(do_not_specialize=[*COUNTS, *STEPS, *SMALL])
def _pull_back_by_batch(
    g, x, y, mean, var, weight, bias, of_mean, of_var, sums, products, of_weight, eps, top,
    count, channels, groups2, rows2, gg1, gg2, gr1, gr2, xg1, xg2, xr1, xr2, yg1, yg2, yr1, yr2,
    mg1, mg2, vg1, vg2, wg1, wg2, bg1, bg2, eg1, eg2, dg1, dg2,
    RECTIFIES: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    channels = channels * UNIT
    tiles = tl.cdiv(channels, CHANNELS)
    group, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    c = tile * CHANNELS + tl.arange(0, CHANNELS)
    known = c < channels
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    there = (row < count)[:, None] & known[None, :]
    g += find_place(group, groups2, gg1, gg2, UNIT)
    x += find_place(group, groups2, xg1, xg2, UNIT)
    y += find_place(group, groups2, yg1, yg2, UNIT)
    mean += find_place(group, groups2, mg1, mg2, UNIT)
    var += find_place(group, groups2, vg1, vg2, UNIT)
    weight += find_place(group, groups2, wg1, wg2, UNIT)
    bias += find_place(group, groups2, bg1, bg2, UNIT)
    of_mean += find_place(group, groups2, eg1, eg2, UNIT)
    of_var += find_place(group, groups2, dg1, dg2, UNIT)
    m, inverse, w, b = _fold(mean, var, weight, bias, eps, c, known)
    a = w * inverse
    total = tl.load(sums + group * channels + c, mask=known, other=0.0)
    product = tl.load(products + group * channels + c, mask=known, other=0.0)
    if tl.program_id(1) == 0:
        tl.store(of_weight + group * channels + c, product * inverse, mask=known)
    share = 1.0 / count.to(tl.float32)
    slope = 2.0 * share * (tl.load(of_var + c, mask=known, other=0.0) - 0.5 * product * a * inverse * inverse)
    shift = share * (tl.load(of_mean + c, mask=known, other=0.0) - a * total)
    one = tl.load(g + find_place(row, rows2, gr1, gr2, UNIT)[:, None] + c[None, :], mask=there, other=0.0)
    apart = tl.load(x + find_place(row, rows2, xr1, xr2, UNIT)[:, None] + c[None, :], mask=there, other=0.0)
    apart = apart - m[None, :]
    if RECTIFIES:
        value = apart * a[None, :] + b[None, :]
        one = tl.where((value > 0) & (value < top), one, 0.0)
    one = one * a[None, :] + apart * slope[None, :] + shift[None, :]
    tl.store(y + find_place(row, rows2, yr1, yr2, UNIT)[:, None] + c[None, :], one, mask=there)


def pull_back_by_batch(
    gradient: Tensor, x: Tensor, small: Sequence[Tensor], eps: float, top: float | None, of_x: Tensor, rows: Rows
) -> tuple[Tensor, Tensor]:
    """Return the gradients [G, C] of weight and bias, and write that of x to `of_x` (see `batch_normalisation`).

    `small` are mean, variance, weight, bias, and the gradients of mean and variance; the rows are those of the
    gradient, x, of_x and `small`.
    """
    (tall, wide), part, pieces = divide_rows(rows)
    both = torch.empty(2, pieces, rows.groups, rows.channels, dtype=x.dtype, device=x.device)
    steps, counts, unit = in_units(rows)
    large, few = steps[:3], [step for each in steps[3:] for step in each[:2]]
    settings = {"RECTIFIES": top is not None, "UNIT": unit, "num_warps": WARPS}
    _sum_by_batch[(rows.groups * triton.cdiv(rows.channels, wide), pieces)](
        *(gradient, x, *small[:4], *both.unbind(), eps, top or 0.0, part, *counts, *large[0], *large[1], *few[:8]),
        ROWS=tall, CHANNELS=wide, **settings,
    )  # fmt: skip
    sums, products = both[:, 0] if pieces == 1 else both.sum(1)
    of_weight = torch.empty_like(products)
    _pull_back_by_batch[count_tiles(rows)](
        *(gradient, x, of_x, *small, sums, products, of_weight, eps, top or 0.0, *counts),
        *(step for each in large for step in each), *few,
        ROWS=WIDE_ROWS, CHANNELS=WIDE_CHANNELS, **settings,
    )  # fmt: skip
    return of_weight, sums
