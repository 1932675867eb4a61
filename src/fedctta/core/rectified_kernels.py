"""The kernel of `rectified_gradients`, in Triton; import this file where a tensor is on a GPU, and nowhere else.

Tensors are the groups of rows of channels that `norm_kernels` describes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedctta.core.norm_kernels import COUNTS, WARPS, divide_rows, find_place, in_units
from fedctta.core.rows_of_channels import Rows

STEPS = [f"{tensor}{axis}{k}" for tensor in "gxy" for axis in "gr" for k in (1, 2)]


@triton.jit(do_not_specialize=["part", *COUNTS, *STEPS, "ag1", "ag2", "bg1", "bg2"])
def _pull_back(
    g, x, y, scale, shift, sums, products, top, part, count, channels, groups2, rows2,
    gg1, gg2, gr1, gr2, xg1, xg2, xr1, xr2, yg1, yg2, yr1, yr2, ag1, ag2, bg1, bg2,
    WRITES: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    channels = channels * UNIT
    tiles = tl.cdiv(channels, CHANNELS)
    group, tile, piece = tl.program_id(0) // tiles, tl.program_id(0) % tiles, tl.program_id(1)
    c = tile * CHANNELS + tl.arange(0, CHANNELS)
    end = tl.minimum((piece + 1) * part, count)
    g += find_place(group, groups2, gg1, gg2, UNIT)
    x += find_place(group, groups2, xg1, xg2, UNIT)
    y += find_place(group, groups2, yg1, yg2, UNIT)
    a = tl.load(scale + find_place(group, groups2, ag1, ag2, UNIT) + c, mask=c < channels, other=0.0)[None, :]
    b = tl.load(shift + find_place(group, groups2, bg1, bg2, UNIT) + c, mask=c < channels, other=0.0)[None, :]
    s = tl.zeros([ROWS, CHANNELS], tl.float32)
    p = tl.zeros([ROWS, CHANNELS], tl.float32)
    for first in range(piece * part, end, ROWS):
        row = first + tl.arange(0, ROWS)
        there = (row < end)[:, None] & (c < channels)[None, :]
        one = tl.load(g + find_place(row, rows2, gr1, gr2, UNIT)[:, None] + c[None, :], mask=there, other=0.0)
        other = tl.load(x + find_place(row, rows2, xr1, xr2, UNIT)[:, None] + c[None, :], mask=there, other=0.0)
        value = other * a + b
        one = tl.where((value > 0) & (value < top), one, 0.0)
        s += one
        p += one * other
        if WRITES:
            tl.store(y + find_place(row, rows2, yr1, yr2, UNIT)[:, None] + c[None, :], one * a, mask=there)
    to = (piece * (tl.num_programs(0) // tiles) + group) * channels + c
    tl.store(sums + to, tl.sum(s, axis=0), mask=c < channels)
    tl.store(products + to, tl.sum(p, axis=0), mask=c < channels)


def pull_back(
    gradient: Tensor, x: Tensor, scale: Tensor, shift: Tensor, top: float, of_x: Tensor | None, rows: Rows
) -> tuple[Tensor, Tensor]:
    """Return the gradients [G, C] of scale and shift, and write that of x to `of_x`, if it is wanted.

    The rows are those of the gradient, x, of_x (or x again), scale and shift.
    """
    (tall, wide), part, pieces = divide_rows(rows)
    both = torch.empty(2, pieces, rows.groups, rows.channels, dtype=x.dtype, device=x.device)
    (*large, of_scale, of_shift), counts, unit = in_units(rows)
    _pull_back[(rows.groups * triton.cdiv(rows.channels, wide), pieces)](
        *(gradient, x, x if of_x is None else of_x, scale, shift, *both.unbind(), top, part, *counts),
        *(step for steps in large for step in steps), *of_scale[:2], *of_shift[:2],
        WRITES=of_x is not None, UNIT=unit, ROWS=tall, CHANNELS=wide, num_warps=WARPS,
    )  # fmt: skip
    sums, products = both[:, 0] if pieces == 1 else both.sum(1)
    return products, sums
