"""Kernels for normalisation on a GPU, in Triton; import this file where a tensor is on one, and nowhere else.

A tensor is G groups (clients) of P rows (pixels) of C numbers (channels), which lie side by side. Groups and rows have
one or two steps in memory each (`rows_of_channels: Rows`): the number at (g, p, c) is at

    (g // G2) sg1 + (g % G2) sg2 + (p // P2) sp1 + (p % P2) sp2 + c

Moments are Welford's, a running mean and a sum of squared deviations in every lane of a tile, and lanes, and then
parts of the rows, are merged by Chan's formula. The order of sums is fixed by the shapes, so that results are too.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedctta.core.rows_of_channels import Rows

LONG = (512, 8)  # rows and channels of a tile that is summed: narrow, so that few clients fill a GPU
SHORT = (16, 64)  # the same where there are few rows
FEW, MANY = (64, 1), (256, 100)  # up to how many rows they are few, with so many groups or more
WARPS = 4
WIDE_ROWS, WIDE_CHANNELS, WIDE_WARPS = 32, 64, 4  # of a tile that is read and written
ENOUGH = 256  # programs that fill a GPU
ALONE = 2048  # rows, up to which one program sums them all


@triton.jit(do_not_specialize=["count", "part", "groups2", "rows2"])
def _moments(
    x, mean, squares, count, part, channels, groups2, rows2, xg1, xg2, xr1, xr2,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(channels, CHANNELS)
    group, tile, piece = tl.program_id(0) // tiles, tl.program_id(0) % tiles, tl.program_id(1)
    c = tile * CHANNELS + tl.arange(0, CHANNELS)
    lanes = tl.arange(0, ROWS)
    begin = piece * part
    end = tl.minimum(begin + part, count)
    x += (group // groups2) * xg1 + (group % groups2) * xg2
    m = tl.zeros([ROWS, CHANNELS], tl.float32)
    s = tl.zeros([ROWS, CHANNELS], tl.float32)
    seen = 0.0
    for first in range(begin, end, ROWS):
        row = first + lanes
        there = (row < end)[:, None] & (c < channels)[None, :]
        place = (row // rows2) * xr1 + (row % rows2) * xr2
        value = tl.load(x + place[:, None] + c[None, :], mask=there, other=0.0).to(tl.float32)
        seen += 1.0
        away = tl.where(there, value - m, 0.0)
        m += away * (1.0 / seen)
        s += tl.where(there, away * (value - m), 0.0)
    size = end - begin
    weight = ((size - lanes + ROWS - 1) // ROWS).to(tl.float32)[:, None]  # rows that a lane has seen
    whole = tl.sum(m * weight, axis=0) / size.to(tl.float32)
    away = tl.where(weight > 0, m - whole[None, :], 0.0)
    total = tl.sum(s, axis=0) + tl.sum(away * away * weight, axis=0)
    to = (piece * (tl.num_programs(0) // tiles) + group) * channels + c
    tl.store(mean + to, whole, mask=c < channels)
    if tl.num_programs(1) == 1:
        total = total / size.to(tl.float32)
    tl.store(squares + to, total, mask=c < channels)


@triton.jit(do_not_specialize=["count", "part", "pieces", "size"])
def _merge(means, squares, mean, var, count, part, pieces, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = tl.zeros([BLOCK], tl.float32)
    s = tl.zeros([BLOCK], tl.float32)
    seen = 0.0
    for piece in range(pieces):
        more = (tl.minimum((piece + 1) * part, count) - piece * part).to(tl.float32)
        other = tl.load(means + piece * size + at, mask=at < size, other=0.0)
        away = other - m
        seen += more
        m += away * (more / seen)
        s += tl.load(squares + piece * size + at, mask=at < size, other=0.0) + away * (other - m) * more
    tl.store(mean + at, m, mask=at < size)
    tl.store(var + at, s / seen, mask=at < size)


@triton.jit(do_not_specialize=["count", "groups2", "rows2"])
def _scale(
    x, scale, shift, y, count, channels, groups2, rows2, xg1, xg2, xr1, xr2, yg1, yg2, yr1, yr2, ag1, ag2, bg1, bg2,
    SHIFTS: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(channels, CHANNELS)
    group, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    g1, g2 = group // groups2, group % groups2
    c = tile * CHANNELS + tl.arange(0, CHANNELS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    there = (row < count)[:, None] & (c < channels)[None, :]
    r1, r2 = row // rows2, row % rows2
    value = tl.load(x + g1 * xg1 + g2 * xg2 + (r1 * xr1 + r2 * xr2)[:, None] + c[None, :], mask=there, other=0.0)
    a = tl.load(scale + g1 * ag1 + g2 * ag2 + c, mask=c < channels, other=0.0)
    value = value * a[None, :]
    if SHIFTS:
        b = tl.load(shift + g1 * bg1 + g2 * bg2 + c, mask=c < channels, other=0.0)
        value += b[None, :]
    tl.store(y + g1 * yg1 + g2 * yg2 + (r1 * yr1 + r2 * yr2)[:, None] + c[None, :], value, mask=there)


@triton.jit(do_not_specialize=["count", "groups2", "rows2"])
def _normalise(
    x, mean, var, weight, bias, y, eps, count, channels, groups2, rows2,
    xg1, xg2, xr1, xr2, yg1, yg2, yr1, yr2, mg1, mg2, vg1, vg2, wg1, wg2, bg1, bg2,
    WEIGHTS: tl.constexpr, SHIFTS: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(channels, CHANNELS)
    group, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    g1, g2 = group // groups2, group % groups2
    c = tile * CHANNELS + tl.arange(0, CHANNELS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    there = (row < count)[:, None] & (c < channels)[None, :]
    r1, r2 = row // rows2, row % rows2
    value = tl.load(x + g1 * xg1 + g2 * xg2 + (r1 * xr1 + r2 * xr2)[:, None] + c[None, :], mask=there, other=0.0)
    m = tl.load(mean + g1 * mg1 + g2 * mg2 + c, mask=c < channels, other=0.0)
    v = tl.load(var + g1 * vg1 + g2 * vg2 + c, mask=c < channels, other=1.0)
    a = 1.0 / tl.sqrt(v + eps)
    if WEIGHTS:
        a = a * tl.load(weight + g1 * wg1 + g2 * wg2 + c, mask=c < channels, other=0.0)
    b = -m * a
    if SHIFTS:
        b += tl.load(bias + g1 * bg1 + g2 * bg2 + c, mask=c < channels, other=0.0)
    value = value * a[None, :] + b[None, :]
    tl.store(y + g1 * yg1 + g2 * yg2 + (r1 * yr1 + r2 * yr2)[:, None] + c[None, :], value, mask=there)


@triton.jit(do_not_specialize=["count", "part", "groups2", "rows2"])
def _sums(
    x, y, sums, products, count, part, channels, groups2, rows2, xg1, xg2, xr1, xr2, yg1, yg2, yr1, yr2,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(channels, CHANNELS)
    group, tile, piece = tl.program_id(0) // tiles, tl.program_id(0) % tiles, tl.program_id(1)
    g1, g2 = group // groups2, group % groups2
    c = tile * CHANNELS + tl.arange(0, CHANNELS)
    end = tl.minimum((piece + 1) * part, count)
    x += g1 * xg1 + g2 * xg2
    y += g1 * yg1 + g2 * yg2
    s = tl.zeros([ROWS, CHANNELS], tl.float32)
    p = tl.zeros([ROWS, CHANNELS], tl.float32)
    for first in range(piece * part, end, ROWS):
        row = first + tl.arange(0, ROWS)
        there = (row < end)[:, None] & (c < channels)[None, :]
        r1, r2 = row // rows2, row % rows2
        one = tl.load(x + (r1 * xr1 + r2 * xr2)[:, None] + c[None, :], mask=there, other=0.0)
        other = tl.load(y + (r1 * yr1 + r2 * yr2)[:, None] + c[None, :], mask=there, other=0.0)
        s += one
        p += one * other
    to = (piece * (tl.num_programs(0) // tiles) + group) * channels + c
    tl.store(sums + to, tl.sum(s, axis=0), mask=c < channels)
    tl.store(products + to, tl.sum(p, axis=0), mask=c < channels)


def moments(x: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return the mean and the biased variance [G, C] over the rows."""
    (tall, wide), part, pieces = _divide(rows)
    mean, squares = x.new_empty(2, pieces, rows.groups, rows.channels).unbind()
    _moments[(rows.groups * triton.cdiv(rows.channels, wide), pieces)](
        *(x, mean, squares, rows.length, part, rows.channels, rows.groups2, rows.rows2, *rows.steps[0]),
        ROWS=tall, CHANNELS=wide, num_warps=WARPS,
    )  # fmt: skip
    if pieces == 1:
        return mean[0], squares[0]
    size = rows.groups * rows.channels
    both = x.new_empty(2, rows.groups, rows.channels).unbind()
    _merge[(triton.cdiv(size, 128),)](mean, squares, *both, rows.length, part, pieces, size, BLOCK=128, num_warps=4)
    return both[0], both[1]


def scale(x: Tensor, by: Tensor, shift: Tensor | None, y: Tensor, rows: Rows) -> None:
    """Write x by + shift to y; the rows are those of x, y, by, and shift (or of `by` again without one)."""
    of_x, of_y, of_scale, of_shift = rows.steps
    _scale[_wide(rows)](
        *(x, by, by if shift is None else shift, y, rows.length, rows.channels, rows.groups2, rows.rows2),
        *(*of_x, *of_y, *of_scale[:2], *of_shift[:2]),
        SHIFTS=shift is not None, ROWS=WIDE_ROWS, CHANNELS=WIDE_CHANNELS, num_warps=WIDE_WARPS,
    )  # fmt: skip


def normalise(
    x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, y: Tensor, rows: Rows
) -> None:
    """Write (x - mean) / sqrt(var + eps) weight + bias to y; the rows are those of x, y, mean, var, weight, bias."""
    of_x, of_y, *of_small = rows.steps
    steps = *of_x, *of_y, *(step for each in of_small for step in each[:2])
    _normalise[_wide(rows)](
        *(x, mean, var, mean if weight is None else weight, mean if bias is None else bias, y, eps),
        *(rows.length, rows.channels, rows.groups2, rows.rows2, *steps),
        WEIGHTS=weight is not None, SHIFTS=bias is not None,
        ROWS=WIDE_ROWS, CHANNELS=WIDE_CHANNELS, num_warps=WIDE_WARPS,
    )  # fmt: skip


def sums(x: Tensor, y: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return the sums [G, C] of x and of x y over the rows."""
    (tall, wide), part, pieces = _divide(rows)
    both = torch.empty(2, pieces, rows.groups, rows.channels, dtype=x.dtype, device=x.device)
    _sums[(rows.groups * triton.cdiv(rows.channels, wide), pieces)](
        *(x, y, *both.unbind(), rows.length, part, rows.channels, rows.groups2, rows.rows2),
        *(*rows.steps[0], *rows.steps[1]),
        ROWS=tall, CHANNELS=wide, num_warps=WARPS,
    )  # fmt: skip
    of_x, of_both = both[:, 0] if pieces == 1 else both.sum(1)
    return of_x, of_both


def _divide(rows: Rows) -> tuple[tuple[int, int], int, int]:
    """Return the tile, and into parts of how many rows, and into how many, all are divided so that a GPU is full."""
    if any(rows.length <= length and rows.groups >= groups for length, groups in (FEW, MANY)):
        return SHORT, rows.length, 1
    tall, wide = LONG
    programs = rows.groups * triton.cdiv(rows.channels, wide)
    pieces = max(1, min(triton.cdiv(ENOUGH, programs), rows.length // ALONE))
    part = triton.cdiv(triton.cdiv(rows.length, pieces), tall) * tall
    return LONG, part, triton.cdiv(rows.length, part)


def _wide(rows: Rows) -> tuple[int, int]:
    return rows.groups * triton.cdiv(rows.channels, WIDE_CHANNELS), triton.cdiv(rows.length, WIDE_ROWS)
