"""Kernels for normalisation on a GPU, in Triton; import this file where a tensor is on one, and nowhere else.

A tensor is G groups (clients) of P rows (pixels) of C numbers (channels), which lie side by side. Groups and rows have
one or two steps in memory each (`rows_of_channels: Rows`): the number at (g, p, c) is at

    (g // G2) sg1 + (g % G2) sg2 + (p // P2) sp1 + (p % P2) sp2 + c

Steps and channels are passed in units of UNIT numbers. If that is 4, numbers are read four at a time; everything else
is left open when a kernel is compiled, so that one serves all shapes.

Moments are Welford's, a running mean and a sum of squared deviations in every lane of a tile, and lanes, and then
parts of the rows, are merged by Chan's formula. The order of sums is fixed by the shapes, so that results are too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedctta.core.rows_of_channels import Rows

LONG = (512, 8)  # rows and channels of a tile that is summed: narrow, so that few clients fill a GPU
SHORT = (16, 64)  # the same where there are few rows
FEW, MANY = (64, 1), (256, 100)  # up to how many rows they are few, with so many groups or more
WARPS = 4
WIDE_ROWS, WIDE_CHANNELS = 32, 64  # of a tile that is read and written
ENOUGH = 1024  # programs that fill a GPU
ALONE = 2048  # rows, up to which one program sums them all
TOGETHER = 2 * ALONE  # rows, up to which it normalises them, too


COUNTS = ["count", "channels", "groups2", "rows2"]
X, Y = ["xg1", "xg2", "xr1", "xr2"], ["yg1", "yg2", "yr1", "yr2"]
SMALL = [f"{tensor}g{k}" for tensor in "osrlwb" for k in (1, 2)]  # origin, shift, rest, least, weight, bias


@triton.jit
def find_place(index, size2, step1, step2, UNIT: tl.constexpr):
    """Return where a group or a row begins."""
    return ((index // size2) * step1 + (index % size2) * step2) * UNIT


@triton.jit
def _measure(
    x, begin, end, c, channels, rows2, xr1, xr2, UNIT: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """Return the mean and the sum of squared deviations of some channels, over the rows from begin to end."""
    lanes = tl.arange(0, ROWS)
    m = tl.zeros([ROWS, CHANNELS], tl.float32)
    s = tl.zeros([ROWS, CHANNELS], tl.float32)
    seen = 0.0
    for first in range(begin, end, ROWS):
        row = first + lanes
        there = (row < end)[:, None] & (c < channels)[None, :]
        value = tl.load(x + find_place(row, rows2, xr1, xr2, UNIT)[:, None] + c[None, :], mask=there, other=0.0)
        value = value.to(tl.float32)
        seen += 1.0
        away = tl.where(there, value - m, 0.0)
        m += away * (1.0 / seen)
        s += tl.where(there, away * (value - m), 0.0)
    size = end - begin
    weight = ((size - lanes + ROWS - 1) // ROWS).to(tl.float32)[:, None]  # rows that a lane has seen
    whole = tl.sum(m * weight, axis=0) / size.to(tl.float32)
    away = tl.where(weight > 0, m - whole[None, :], 0.0)
    return whole, tl.sum(s, axis=0) + tl.sum(away * away * weight, axis=0)


@triton.jit
def _blend(m, v, origin, shift, rest, least, b, c, there):
    """Return the statistics that `fused_norms: blend_plain` computes of a batch's."""
    o = tl.load(origin + c, mask=there, other=0.0)
    apart = m - o
    first = tl.load(shift + c, mask=there, other=0.0) + apart * b
    new = tl.load(rest + c, mask=there, other=0.0) + (v + apart * apart) * b - first * first
    return o + first, tl.maximum(new, tl.load(least + c, mask=there, other=0.0))


@triton.jit
def _fold(m, v, weight, bias, eps, c, there, WEIGHTS: tl.constexpr, SHIFTS: tl.constexpr):
    """Return the scale and the shift that normalise."""
    a = 1.0 / tl.sqrt(v + eps)
    if WEIGHTS:
        a = a * tl.load(weight + c, mask=there, other=0.0)
    b = -m * a
    if SHIFTS:
        b += tl.load(bias + c, mask=there, other=0.0)
    return a, b


@triton.jit
def _rectify(value, top):
    """Return min(max(0, value), top); what is no number stays none."""
    value = tl.where(value < 0, 0.0, value)
    return tl.where(value > top, top, value)


@triton.jit(do_not_specialize=["part", *COUNTS, *X])
def _moments(
    x, mean, squares, part, count, channels, groups2, rows2, xg1, xg2, xr1, xr2,
    UNIT: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    channels = channels * UNIT
    tiles = tl.cdiv(channels, CHANNELS)
    group, tile, piece = tl.program_id(0) // tiles, tl.program_id(0) % tiles, tl.program_id(1)
    c = tile * CHANNELS + tl.arange(0, CHANNELS)
    begin = piece * part
    end = tl.minimum(begin + part, count)
    x += find_place(group, groups2, xg1, xg2, UNIT)
    whole, total = _measure(x, begin, end, c, channels, rows2, xr1, xr2, UNIT, ROWS, CHANNELS)
    to = (piece * (tl.num_programs(0) // tiles) + group) * channels + c
    tl.store(mean + to, whole, mask=c < channels)
    if tl.num_programs(1) == 1:
        total = total / (end - begin).to(tl.float32)
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


@triton.jit(do_not_specialize=[*COUNTS, *X, *Y, "ag1", "ag2", "bg1", "bg2"])
def _scale(
    x, scale, shift, y, top, count, channels, groups2, rows2,
    xg1, xg2, xr1, xr2, yg1, yg2, yr1, yr2, ag1, ag2, bg1, bg2,
    SHIFTS: tl.constexpr, RECTIFIES: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    channels = channels * UNIT
    tiles = tl.cdiv(channels, CHANNELS)
    group, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    c = tile * CHANNELS + tl.arange(0, CHANNELS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    there = (row < count)[:, None] & (c < channels)[None, :]
    x += find_place(group, groups2, xg1, xg2, UNIT)
    value = tl.load(x + find_place(row, rows2, xr1, xr2, UNIT)[:, None] + c[None, :], mask=there, other=0.0)
    a = tl.load(scale + find_place(group, groups2, ag1, ag2, UNIT) + c, mask=c < channels, other=0.0)
    value = value.to(tl.float32) * a[None, :]
    if SHIFTS:
        b = tl.load(shift + find_place(group, groups2, bg1, bg2, UNIT) + c, mask=c < channels, other=0.0)
        value += b[None, :]
    if RECTIFIES:
        value = _rectify(value, top)
    y += find_place(group, groups2, yg1, yg2, UNIT)
    tl.store(y + find_place(row, rows2, yr1, yr2, UNIT)[:, None] + c[None, :], value, mask=there)


@triton.jit(do_not_specialize=[*COUNTS, *X, *Y, "mg1", "mg2", "vg1", "vg2", "wg1", "wg2", "bg1", "bg2"])
def _normalise(
    x, mean, var, weight, bias, y, eps, top, count, channels, groups2, rows2,
    xg1, xg2, xr1, xr2, yg1, yg2, yr1, yr2, mg1, mg2, vg1, vg2, wg1, wg2, bg1, bg2,
    WEIGHTS: tl.constexpr, SHIFTS: tl.constexpr, RECTIFIES: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    channels = channels * UNIT
    tiles = tl.cdiv(channels, CHANNELS)
    group, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    c = tile * CHANNELS + tl.arange(0, CHANNELS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    there = (row < count)[:, None] & (c < channels)[None, :]
    x += find_place(group, groups2, xg1, xg2, UNIT)
    value = tl.load(x + find_place(row, rows2, xr1, xr2, UNIT)[:, None] + c[None, :], mask=there, other=0.0)
    m = tl.load(mean + find_place(group, groups2, mg1, mg2, UNIT) + c, mask=c < channels, other=0.0)
    v = tl.load(var + find_place(group, groups2, vg1, vg2, UNIT) + c, mask=c < channels, other=1.0)
    weight += find_place(group, groups2, wg1, wg2, UNIT)
    bias += find_place(group, groups2, bg1, bg2, UNIT)
    a, b = _fold(m, v, weight, bias, eps, c, c < channels, WEIGHTS, SHIFTS)
    value = value * a[None, :] + b[None, :]
    if RECTIFIES:
        value = _rectify(value, top)
    y += find_place(group, groups2, yg1, yg2, UNIT)
    tl.store(y + find_place(row, rows2, yr1, yr2, UNIT)[:, None] + c[None, :], value, mask=there)


@triton.jit(do_not_specialize=["part", *COUNTS, *X, *Y])
def _sums(
    x, y, sums, products, part, count, channels, groups2, rows2, xg1, xg2, xr1, xr2, yg1, yg2, yr1, yr2,
    UNIT: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    channels = channels * UNIT
    tiles = tl.cdiv(channels, CHANNELS)
    group, tile, piece = tl.program_id(0) // tiles, tl.program_id(0) % tiles, tl.program_id(1)
    c = tile * CHANNELS + tl.arange(0, CHANNELS)
    end = tl.minimum((piece + 1) * part, count)
    x += find_place(group, groups2, xg1, xg2, UNIT)
    y += find_place(group, groups2, yg1, yg2, UNIT)
    s = tl.zeros([ROWS, CHANNELS], tl.float32)
    p = tl.zeros([ROWS, CHANNELS], tl.float32)
    for first in range(piece * part, end, ROWS):
        row = first + tl.arange(0, ROWS)
        there = (row < end)[:, None] & (c < channels)[None, :]
        one = tl.load(x + find_place(row, rows2, xr1, xr2, UNIT)[:, None] + c[None, :], mask=there, other=0.0)
        other = tl.load(y + find_place(row, rows2, yr1, yr2, UNIT)[:, None] + c[None, :], mask=there, other=0.0)
        s += one
        p += one * other
    to = (piece * (tl.num_programs(0) // tiles) + group) * channels + c
    tl.store(sums + to, tl.sum(s, axis=0), mask=c < channels)
    tl.store(products + to, tl.sum(p, axis=0), mask=c < channels)


@triton.jit(do_not_specialize=[*COUNTS, *X, *Y, *SMALL])
def _normalise_blended(
    x, y, mean, var, origin, shift, rest, least, weight, bias, share, eps, top, count, channels, groups2, rows2,
    xg1, xg2, xr1, xr2, yg1, yg2, yr1, yr2, og1, og2, sg1, sg2, rg1, rg2, lg1, lg2, wg1, wg2, bg1, bg2,
    WEIGHTS: tl.constexpr, SHIFTS: tl.constexpr, RECTIFIES: tl.constexpr, UNIT: tl.constexpr, ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    channels = channels * UNIT
    tiles = tl.cdiv(channels, CHANNELS)
    group, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    c = tile * CHANNELS + tl.arange(0, CHANNELS)
    known = c < channels
    x += find_place(group, groups2, xg1, xg2, UNIT)
    y += find_place(group, groups2, yg1, yg2, UNIT)
    m, v = _measure(x, 0, count, c, channels, rows2, xr1, xr2, UNIT, ROWS, CHANNELS)
    v = v / count.to(tl.float32)
    tl.store(mean + group * channels + c, m, mask=known)
    tl.store(var + group * channels + c, v, mask=known)
    origin += find_place(group, groups2, og1, og2, UNIT)
    shift += find_place(group, groups2, sg1, sg2, UNIT)
    rest += find_place(group, groups2, rg1, rg2, UNIT)
    least += find_place(group, groups2, lg1, lg2, UNIT)
    weight += find_place(group, groups2, wg1, wg2, UNIT)
    bias += find_place(group, groups2, bg1, bg2, UNIT)
    m, v = _blend(m, v, origin, shift, rest, least, tl.load(share + group), c, known)
    a, b = _fold(m, v, weight, bias, eps, c, known, WEIGHTS, SHIFTS)
    for first in range(0, count, ROWS):  # once more over what is in the cache
        row = first + tl.arange(0, ROWS)
        there = (row < count)[:, None] & known[None, :]
        value = tl.load(x + find_place(row, rows2, xr1, xr2, UNIT)[:, None] + c[None, :], mask=there, other=0.0)
        value = value.to(tl.float32) * a[None, :] + b[None, :]
        if RECTIFIES:
            value = _rectify(value, top)
        tl.store(y + find_place(row, rows2, yr1, yr2, UNIT)[:, None] + c[None, :], value, mask=there)


@triton.jit(do_not_specialize=["part", "pieces", "count", "channels", "groups2", *SMALL])
def _settle(
    means, squares, mean, var, scale, offset, origin, shift, rest, least, weight, bias, share, eps,
    part, pieces, count, channels, groups2, og1, og2, sg1, sg2, rg1, rg2, lg1, lg2, wg1, wg2, bg1, bg2,
    WEIGHTS: tl.constexpr, SHIFTS: tl.constexpr, UNIT: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    channels = channels * UNIT
    group = tl.program_id(0)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    known = c < channels
    to = group * channels + c
    m = tl.zeros([CHANNELS], tl.float32)
    s = tl.zeros([CHANNELS], tl.float32)
    seen = 0.0
    for piece in range(pieces):
        more = (tl.minimum((piece + 1) * part, count) - piece * part).to(tl.float32)
        other = tl.load(means + piece * tl.num_programs(0) * channels + to, mask=known, other=0.0)
        away = other - m
        seen += more
        m += away * (more / seen)
        found = tl.load(squares + piece * tl.num_programs(0) * channels + to, mask=known, other=0.0)
        s += found + away * (other - m) * more
    v = s / seen
    if pieces == 1:
        v = tl.load(squares + to, mask=known, other=0.0)  # already divided
    tl.store(mean + to, m, mask=known)
    tl.store(var + to, v, mask=known)
    origin += find_place(group, groups2, og1, og2, UNIT)
    shift += find_place(group, groups2, sg1, sg2, UNIT)
    rest += find_place(group, groups2, rg1, rg2, UNIT)
    least += find_place(group, groups2, lg1, lg2, UNIT)
    weight += find_place(group, groups2, wg1, wg2, UNIT)
    bias += find_place(group, groups2, bg1, bg2, UNIT)
    m, v = _blend(m, v, origin, shift, rest, least, tl.load(share + group), c, known)
    a, b = _fold(m, v, weight, bias, eps, c, known, WEIGHTS, SHIFTS)
    tl.store(scale + to, a, mask=known)
    tl.store(offset + to, b, mask=known)


def moments(x: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return the mean and the biased variance [G, C] over the rows."""
    (tall, wide), part, pieces = divide_rows(rows)
    mean, squares = x.new_empty(2, pieces, rows.groups, rows.channels).unbind()
    (steps,), counts, unit = in_units(rows)
    _moments[(rows.groups * triton.cdiv(rows.channels, wide), pieces)](
        x, mean, squares, part, *counts, *steps, UNIT=unit, ROWS=tall, CHANNELS=wide, num_warps=WARPS
    )
    if pieces == 1:
        return mean[0], squares[0]
    size = rows.groups * rows.channels
    both = x.new_empty(2, rows.groups, rows.channels).unbind()
    _merge[(triton.cdiv(size, 128),)](mean, squares, *both, rows.length, part, pieces, size, BLOCK=128, num_warps=4)
    return both[0], both[1]


def scale(x: Tensor, by: Tensor, shift: Tensor | None, top: float | None, y: Tensor, rows: Rows) -> None:
    """Write x by + shift to y, or with a `top` min(max(0, .), top) of that.

    The rows are those of x, y, by, and shift (or of `by` again without one).
    """
    (of_x, of_y, *small), counts, unit = in_units(rows)
    _scale[count_tiles(rows)](
        *(x, by, by if shift is None else shift, y, top or 0.0, *counts, *of_x, *of_y),
        *(s for steps in small for s in steps[:2]),
        SHIFTS=shift is not None, RECTIFIES=top is not None, UNIT=unit,
        ROWS=WIDE_ROWS, CHANNELS=WIDE_CHANNELS, num_warps=WARPS,
    )  # fmt: skip


def normalise(
    x: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    top: float | None,
    y: Tensor,
    rows: Rows,
) -> None:
    """Write (x - mean) / sqrt(var + eps) weight + bias to y, or with a `top` min(max(0, .), top) of that.

    The rows are those of x, y, mean, var, weight and bias.
    """
    (of_x, of_y, *small), counts, unit = in_units(rows)
    _normalise[count_tiles(rows)](
        *(x, mean, var, mean if weight is None else weight, mean if bias is None else bias, y, eps),
        *(top or 0.0, *counts, *of_x, *of_y, *(s for steps in small for s in steps[:2])),
        WEIGHTS=weight is not None, SHIFTS=bias is not None, RECTIFIES=top is not None, UNIT=unit,
        ROWS=WIDE_ROWS, CHANNELS=WIDE_CHANNELS, num_warps=WARPS,
    )  # fmt: skip


def sums(x: Tensor, y: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return the sums [G, C] of x and of x y over the rows."""
    (tall, wide), part, pieces = divide_rows(rows)
    both = torch.empty(2, pieces, rows.groups, rows.channels, dtype=x.dtype, device=x.device)
    (of_x, of_y), counts, unit = in_units(rows)
    _sums[(rows.groups * triton.cdiv(rows.channels, wide), pieces)](
        *(x, y, *both.unbind(), part, *counts, *of_x, *of_y),
        UNIT=unit, ROWS=tall, CHANNELS=wide, num_warps=WARPS,
    )  # fmt: skip
    sum_x, sum_both = both[:, 0] if pieces == 1 else both.sum(1)
    return sum_x, sum_both


def normalise_blended(
    x: Tensor,
    small: Sequence[Tensor],
    share: Tensor,
    given: tuple[bool, bool],
    eps: float,
    top: float | None,
    y: Tensor,
    rows: Rows,
) -> tuple[Tensor, Tensor]:
    """Write x, normalised with blended statistics, to y; return the mean and the biased variance [G, C] of x.

    With a `top`, write min(max(0, .), top) of that.

    `small` are the origin, shift, rest and least of `fused_norms: blend_plain`, weight and bias, of which `given` says
    whether there are any; the rows are those of x, y and `small`. x and y may be bfloat16. share[G] lies without gaps.
    A few rows are measured and normalised by one kernel; many by three, so that they fill a GPU.
    """
    (of_x, of_y, *of_small), counts, unit = in_units(rows)
    steps = [step for each in of_small for step in each[:2]]
    settings = {"WEIGHTS": given[0], "SHIFTS": given[1], "UNIT": unit, "num_warps": WARPS}
    (tall, wide), part, pieces = divide_rows(rows)
    mean, var = share.new_empty(2, rows.groups, rows.channels).unbind()
    if rows.length <= TOGETHER:
        _normalise_blended[(rows.groups * triton.cdiv(rows.channels, wide),)](
            *(x, y, mean, var, *small, share, eps, top or 0.0, *counts, *of_x, *of_y, *steps),
            RECTIFIES=top is not None, ROWS=tall, CHANNELS=wide, **settings,
        )  # fmt: skip
        return mean, var
    means, squares = share.new_empty(2, pieces, rows.groups, rows.channels).unbind()
    _moments[(rows.groups * triton.cdiv(rows.channels, wide), pieces)](
        x, means, squares, part, *counts, *of_x, UNIT=unit, ROWS=tall, CHANNELS=wide, num_warps=WARPS
    )
    both = share.new_empty(2, rows.groups, rows.channels).unbind()
    _settle[(rows.groups, triton.cdiv(rows.channels, 128))](
        *(means, squares, mean, var, *both, *small, share, eps, part, pieces, *counts[:3], *steps),
        CHANNELS=128, **settings,
    )  # fmt: skip
    inner = (rows.groups2 * rows.channels // unit, rows.channels // unit)
    _scale[count_tiles(rows)](
        *(x, *both, y, top or 0.0, *counts, *of_x, *of_y, *inner, *inner),
        SHIFTS=True, RECTIFIES=top is not None, UNIT=unit, ROWS=WIDE_ROWS, CHANNELS=WIDE_CHANNELS, num_warps=WARPS,
    )  # fmt: skip
    return mean, var


def in_units(rows: Rows) -> tuple[list[tuple[int, ...]], tuple[int, int, int, int], int]:
    """Return the steps of every tensor, and how many rows, channels, second groups and second rows, in units."""
    unit = 1 if any(number % 4 for number in (rows.channels, *(s for steps in rows.steps for s in steps))) else 4
    steps = [tuple(step // unit for step in each) for each in rows.steps]
    return steps, (rows.length, rows.channels // unit, rows.groups2, rows.rows2), unit


def divide_rows(rows: Rows) -> tuple[tuple[int, int], int, int]:
    """Return the tile, and into parts of how many rows, and into how many, all are divided so that a GPU is full."""
    if any(rows.length <= length and rows.groups >= groups for length, groups in (FEW, MANY)):
        return SHORT, rows.length, 1
    tall, wide = LONG
    programs = rows.groups * triton.cdiv(rows.channels, wide)
    pieces = max(1, min(triton.cdiv(ENOUGH, programs), rows.length // ALONE))
    part = triton.cdiv(triton.cdiv(rows.length, pieces), tall) * tall
    return LONG, part, triton.cdiv(rows.length, part)


def count_tiles(rows: Rows) -> tuple[int, int]:
    """Return how many tiles there are that are read and written, by groups and channels, and by rows."""
    return rows.groups * triton.cdiv(rows.channels, WIDE_CHANNELS), triton.cdiv(rows.length, WIDE_ROWS)
