"""Kernels that draw random views on a GPU, in Triton; import this file where a tensor is on one, and nowhere else.

They compute what `augmentation` does, one image after another: colours are changed in registers, five times over, and
noise is drawn where it is added, so that each is one pass over memory.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

NUMBERS = 1024  # of a tile to which noise is added


@triton.jit(
    do_not_specialize=[
        *("leads2", "images", "pixels", "width"),
        *("l1", "l2", "xb", "xc", "xh", "xw", "s1", "s2", "s3", "s4"),
    ]
)
def _jitter(
    x, settings, y, leads2, images, pixels, width, l1, l2, xb, xc, xh, xw, s1, s2, s3, s4, BLOCK: tl.constexpr
):  # fmt: skip
    lead, image = tl.program_id(0) // images, tl.program_id(0) % images
    p = tl.arange(0, BLOCK)
    there = p < pixels
    outer, inner = lead // leads2, lead % leads2
    at = x + outer * l1 + inner * l2 + image * xb + (p // width) * xh + (p % width) * xw
    settings += outer * s1 + inner * s2
    r = tl.minimum(tl.maximum(tl.load(at, mask=there, other=0.0), 0.0), 1.0)
    g = tl.minimum(tl.maximum(tl.load(at + xc, mask=there, other=0.0), 0.0), 1.0)
    b = tl.minimum(tl.maximum(tl.load(at + 2 * xc, mask=there, other=0.0), 0.0), 1.0)
    for step in range(5):
        factor = tl.load(settings + step * s3)
        to_grey = tl.load(settings + step * s3 + s4)
        to_mean = tl.load(settings + step * s3 + 2 * s4)
        power = tl.load(settings + step * s3 + 3 * s4)
        turn = tl.load(settings + step * s3 + 4 * s4)
        grey = 0.2989 * r + 0.587 * g + 0.114 * b
        mean = tl.sum(tl.where(there, grey, 0.0), axis=0) / pixels
        added = to_mean * mean + grey * to_grey
        r = tl.minimum(tl.maximum(added + r * factor, 0.0), 1.0)
        g = tl.minimum(tl.maximum(added + g * factor, 0.0), 1.0)
        b = tl.minimum(tl.maximum(added + b * factor, 0.0), 1.0)
        if power != 1.0:
            r = tl.exp2(power * tl.log2(r))
            g = tl.exp2(power * tl.log2(g))
            b = tl.exp2(power * tl.log2(b))
        if turn != 0.0:
            value = tl.maximum(tl.maximum(r, g), b)
            chroma = value - tl.minimum(tl.minimum(r, g), b)
            is_red = value <= r
            is_green = value <= g
            slope = tl.where(is_red, g - b, tl.where(is_green, b - r, r - g))
            sixths = slope / tl.maximum(chroma, 1.1754943508222875e-38)
            sixths += tl.where(is_red, 0.0, tl.where(is_green, 2.0, 4.0)) + (6.0 * turn - 2.0)
            away_r = tl.abs(tl.abs(tl.abs(5.0 + sixths) - 3.0) - 3.0)
            away_g = tl.abs(tl.abs(tl.abs(3.0 + sixths) - 3.0) - 3.0)
            away_b = tl.abs(tl.abs(tl.abs(1.0 + sixths) - 3.0) - 3.0)
            r = value - chroma * tl.minimum(tl.maximum(2.0 - away_r, 0.0), 1.0)
            g = value - chroma * tl.minimum(tl.maximum(2.0 - away_g, 0.0), 1.0)
            b = value - chroma * tl.minimum(tl.maximum(2.0 - away_b, 0.0), 1.0)
    to = y + tl.program_id(0) * 3 * pixels + p
    tl.store(to, r, mask=there)
    tl.store(to + pixels, g, mask=there)
    tl.store(to + 2 * pixels, b, mask=there)


@triton.jit(do_not_specialize=["numbers"])
def _add_noise(x, keys, y, numbers, strength, NUMBERS: tl.constexpr):
    e = tl.program_id(1) * NUMBERS + tl.arange(0, NUMBERS)
    half = (numbers + 1) // 2
    second = e >= half
    bits = (tl.load(keys + tl.program_id(0)).to(tl.int32) + tl.where(second, e - half, e)).to(tl.uint32, bitcast=True)
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x2C1B3C6D
    bits = (bits ^ (bits >> 16)) * 0x297A2D39
    bits = bits ^ (bits >> 15)
    number = (bits >> 8).to(tl.float32) * (4096.0 / 16777216.0)
    whole = tl.floor(number)
    radius = tl.sqrt(-2.0 * tl.log((whole + 0.5) / 4096.0))
    angle = 6.283185307179586 * (number - whole)
    drawn = radius * tl.where(second, tl.sin(angle), tl.cos(angle))
    at = tl.program_id(0).to(tl.int64) * numbers + e
    value = tl.load(x + at, mask=e < numbers, other=0.0) + strength * drawn
    tl.store(y + at, tl.minimum(tl.maximum(value, 0.0), 1.0), mask=e < numbers)


def jitter(x: Tensor, settings: Tensor) -> Tensor:
    """Return images x[L, M, B, 3, H, W], held in [0, 1], with the changes of colour settings[L, M, 5, 5].

    The last axes are the step, and its factor, share of grey, share of the mean grey, power and turn of the hue.
    """
    *_, images, _, height, width = x.shape
    y = x.new_empty(x.shape)
    block = triton.next_power_of_2(height * width)
    l1, l2, *inner = x.stride()
    _jitter[(x.shape[0] * x.shape[1] * images,)](
        *(x, settings, y, x.shape[1], images, height * width, width, l1, l2, *inner, *settings.stride()),
        BLOCK=block, num_warps=max(4, min(16, block // 512)),
    )  # fmt: skip
    return y


def add_noise(x: Tensor, keys: Tensor, strength: float) -> Tensor:
    """Return x[V, ...], which lies without gaps, with the normal noise of keys[V], held in [0, 1]."""
    y, numbers = x.new_empty(x.shape), x[0].numel()
    _add_noise[(len(x), triton.cdiv(numbers, NUMBERS))](x, keys, y, numbers, strength, NUMBERS=NUMBERS, num_warps=4)
    return y
