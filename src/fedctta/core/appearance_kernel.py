"""The kernel that looks at images on a GPU in one pass, in Triton; import this file there, and nowhere else."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

PIXELS = 1024  # of a tile
SUMS = 12  # of an image: nine powers, level, change of colours, flat pixels


@triton.jit
def _light(x, channels, xc):
    total = tl.load(x)
    for c in range(1, channels):
        total += tl.load(x + c * xc)
    return total / channels


@triton.jit(do_not_specialize=["leads2", "images", "channels", "height", "width", "l1", "l2", "xb", "xc", "xh", "xw"])
def _look(x, sums, flat, leads2, images, channels, height, width, l1, l2, xb, xc, xh, xw, PIXELS: tl.constexpr):
    lead, image = tl.program_id(0) // images, tl.program_id(0) % images
    p = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    there = p < height * width
    p = tl.minimum(p, height * width - 1)
    h, w = p // width, p % width
    x += (lead // leads2) * l1 + (lead % leads2) * l2 + image * xb
    above, below = tl.maximum(h - 1, 0) * xh, tl.minimum(h + 1, height - 1) * xh  # the border is repeated
    left, right = tl.maximum(w - 1, 0) * xw, tl.minimum(w + 1, width - 1) * xw
    here, middle = h * xh, w * xw
    a = _light(x + above + left, channels, xc)
    b = _light(x + here + left, channels, xc)
    c = _light(x + below + left, channels, xc)
    d = _light(x + above + middle, channels, xc)
    e = _light(x + here + middle, channels, xc)
    f = _light(x + below + middle, channels, xc)
    g = _light(x + above + right, channels, xc)
    i = _light(x + here + right, channels, xc)
    j = _light(x + below + right, channels, xc)
    to = sums + (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * 12
    for u in tl.static_range(3):
        if u == 0:
            one, two, three = a + c + b, d + f + e, g + j + i
        elif u == 1:
            one, two, three = a - c, d - f, g - j
        else:
            one, two, three = a + c - 2 * b, d + f - 2 * e, g + j - 2 * i
        whole, slope, bend = one + three + two, one - three, one + three - 2 * two
        tl.store(to + 3 * u, tl.sum(tl.where(there, whole * whole, 0.0), axis=0))
        tl.store(to + 3 * u + 1, tl.sum(tl.where(there, slope * slope, 0.0), axis=0))
        tl.store(to + 3 * u + 2, tl.sum(tl.where(there, bend * bend, 0.0), axis=0))
        if u == 0:
            tl.store(to + 9, tl.sum(tl.where(there, whole, 0.0), axis=0))
    change = tl.zeros([PIXELS], tl.float32)
    for k in range(channels):
        colour = tl.load(x + here + middle + k * xc) - e
        across = tl.load(x + here + right + k * xc) - i - colour
        down = tl.load(x + below + middle + k * xc) - f - colour
        change += across * across + down * down
    tl.store(to + 10, tl.sum(tl.where(there, change, 0.0), axis=0))
    rests = there & (h + 1 < height) & (tl.abs(f - e) < flat)
    tl.store(to + 11, tl.sum(tl.where(rests, 1.0, 0.0), axis=0))


@triton.jit
def _pick(values, d, place):
    return tl.sum(tl.where(d == place, values, 0.0), axis=0)


@triton.jit(do_not_specialize=["tiles"])
def _tell(
    sums, norms, rows, looks, tiles, pixels, below, numbers, GREY: tl.constexpr, SELDOM: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0)
    d = tl.arange(0, 16)
    total = tl.zeros([16], tl.float32)
    for first in range(0, tiles, TILES):
        t = first + tl.arange(0, TILES)
        there = (t < tiles)[:, None] & (d < 12)[None, :]
        some = tl.load(sums + (image * tiles + t[:, None]) * 12 + d[None, :], mask=there, other=0.0)
        total += tl.sum(some, axis=0)
    level = _pick(total, d, 9) / pixels
    power = total - tl.where(d == 0, level * level * pixels, 0.0)
    norm = tl.load(norms + d, mask=d < 9, other=0.0)
    table = tl.log(tl.maximum(power, 0.0) * (norm * norm) / pixels + GREY * GREY)
    used = (d < 9)[:, None] & (d < 9)[None, :]
    by = tl.load(rows + d[:, None] * 9 + d[None, :], mask=used, other=0.0)
    f = tl.sum(tl.where(used, table[:, None] * by, 0.0), axis=0)
    f = tl.where(d == 9, tl.log(_pick(total, d, 10) / numbers + GREY * GREY), f)
    f = tl.where(d == 10, level / 9, f)
    f = tl.where(d == 11, tl.log(_pick(total, d, 11) / below + SELDOM), f)
    tl.store(looks + image * 12 + d, f, mask=d < 12)


def look(x: Tensor, flat: float) -> Tensor:
    """Return the sums [L, M, B, tiles, 12] over tiles of images x[L, M, B, C, H, W], see `appearance: sum_up`."""
    first, second, images, channels, height, width = x.shape
    tiles = triton.cdiv(height * width, PIXELS)
    sums = x.new_empty(first, second, images, tiles, SUMS)
    _look[(first * second * images, tiles)](
        x, sums, flat, second, images, channels, height, width, *x.stride(), PIXELS=PIXELS, num_warps=4
    )
    return sums


def tell(sums: Tensor, norms: Tensor, rows: Tensor, shape: tuple[int, ...], grey: float, seldom: float) -> Tensor:
    """Return f [L, M, B, 12] of sums over tiles of images of this shape[C, H, W], see `appearance`.

    `norms` and `rows` are those of `appearance: _rows`.
    """
    channels, height, width = shape
    looks = sums.new_empty(*sums.shape[:3], SUMS)
    pixels, below = height * width, max(1, (height - 1) * width)
    _tell[(looks.numel() // SUMS,)](
        *(sums, norms, rows, looks, sums.shape[3], float(pixels), float(below), float(channels * pixels)),
        GREY=grey, SELDOM=seldom, TILES=16, num_warps=1,
    )  # fmt: skip
    return looks
