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


def look(x: Tensor, flat: float) -> Tensor:
    """Return the sums [L, M, B, 12] over the pixels of images x[L, M, B, C, H, W], see `appearance: sum_up`."""
    first, second, images, channels, height, width = x.shape
    tiles = triton.cdiv(height * width, PIXELS)
    sums = x.new_empty(first, second, images, tiles, SUMS)
    _look[(first * second * images, tiles)](
        x, sums, flat, second, images, channels, height, width, *x.stride(), PIXELS=PIXELS, num_warps=4
    )
    return sums.sum(-2)
