"""Kernels that lay out what every output pixel of a convolution sees, and add it up again, in Triton.

Import this file where a tensor is on a GPU, and nowhere else. An output pixel p = (b, y, x) sees at k = (i, j, c)

    seen[n, p, k] = image[n, b, y s - pad + i gap, x s - pad + j gap, c]        0 beyond the border

and the gradient of an image's pixel is the sum of what all output pixels that see it say of it, in the order of (i, j).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

PIXELS, NUMBERS = 32, 128  # of a tile of what pixels see
WIDE = 64  # channels of a tile that is one place of the window
ROWS, CHANNELS = 32, 32  # of a tile of the image's own pixels
UNIT = 4  # numbers that are read at once: steps are passed in such units where every place is copied by itself
MOVES = ("step_h", "step_w", "pad_h", "pad_w", "gap_h", "gap_w")
ENOUGH = 16  # channels from which on, if it divides them, every place of the window is copied by itself


@triton.jit(
    do_not_specialize=[
        *("pixels", "numbers", "down", "across", "height", "width", "sides", "channels"),
        *("xn", "xb", "xh", "xw", "xc", *MOVES),
    ]
)
def _see(
    x, seen, pixels, numbers, down, across, height, width, sides, channels, xn, xb, xh, xw, xc,
    step_h, step_w, pad_h, pad_w, gap_h, gap_w, PIXELS: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(pixels, PIXELS)
    client, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    p = tile * PIXELS + tl.arange(0, PIXELS)
    k = tl.program_id(1) * NUMBERS + tl.arange(0, NUMBERS)
    image, place = p // (down * across), p % (down * across)
    window = k // channels
    top, left = (place // across) * step_h - pad_h, (place % across) * step_w - pad_w
    lower, right = (window // sides) * gap_h, (window % sides) * gap_w
    # An index below zero is a very large one without its sign.
    h = (top[:, None] + lower[None, :]).to(tl.uint32, bitcast=True)
    w = (left[:, None] + right[None, :]).to(tl.uint32, bitcast=True)
    there = (p < pixels)[:, None] & (k < numbers)[None, :]
    inside = there & (h < height.to(tl.uint32)) & (w < width.to(tl.uint32))
    at = (image * xb + top * xh + left * xw)[:, None] + (lower * xh + right * xw + (k % channels) * xc)[None, :]
    value = tl.load(x + client.to(tl.int64) * xn + at, mask=inside, other=0.0)
    to = seen + (client * pixels).to(tl.int64) * numbers
    tl.store(to + p[:, None] * numbers + k[None, :], value, mask=there)


@triton.jit(
    do_not_specialize=[
        *("pixels", "places", "down", "across", "height", "width", "sides", "channels"),
        *("xn", "xb", "xh", "xw", *MOVES),
    ]
)
def _see_wide(
    x, seen, pixels, places, down, across, height, width, sides, channels, xn, xb, xh, xw,
    step_h, step_w, pad_h, pad_w, gap_h, gap_w, UNIT: tl.constexpr, PIXELS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    channels = channels * UNIT
    tiles = tl.cdiv(pixels, PIXELS)
    client, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    window = tl.program_id(1)
    p = tile * PIXELS + tl.arange(0, PIXELS)
    c = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    image, place = p // (down * across), p % (down * across)
    h = (place // across) * step_h - pad_h + (window // sides) * gap_h
    w = (place % across) * step_w - pad_w + (window % sides) * gap_w
    inside = (p < pixels) & (h >= 0) & (h < height) & (w >= 0) & (w < width)
    at = (image * xb + h * xh + w * xw) * UNIT
    known = (c < channels)[None, :]
    value = tl.load(
        x + client.to(tl.int64) * xn * UNIT + at[:, None] + c[None, :], mask=inside[:, None] & known, other=0.0
    )
    to = seen + (client * pixels).to(tl.int64) * places * channels + window * channels
    tl.store(to + (p * places)[:, None] * channels + c[None, :], value, mask=(p < pixels)[:, None] & known)


@triton.jit(
    do_not_specialize=[
        *("rows", "down", "across", "height", "width", "channels"),
        *("xn", "xb", "xh", "xw", *MOVES),
    ]
)
def _add_up(
    seen, x, rows, down, across, height, width, channels, xn, xb, xh, xw,
    step_h, step_w, pad_h, pad_w, gap_h, gap_w, TALL: tl.constexpr, WIDE: tl.constexpr,
    UNIT: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    channels = channels * UNIT
    tiles = tl.cdiv(rows, ROWS)
    client, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    row = tile * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    image, place = row // (height * width), row % (height * width)
    there = (row < rows)[:, None] & (c < channels)[None, :]
    pixels = (rows // (height * width)) * down * across
    whole = seen + (client * pixels).to(tl.int64) * (TALL * WIDE * channels)
    total = tl.zeros([ROWS, CHANNELS], tl.float32)
    for i in range(TALL):
        h = place // width + pad_h - i * gap_h
        for j in range(WIDE):
            w = place % width + pad_w - j * gap_w
            inside = (h >= 0) & (w >= 0) & (h % step_h == 0) & (w % step_w == 0)
            y, z = h // step_h, w // step_w
            inside = inside & (y < down) & (z < across)
            pixel = (image * down + y) * across + z
            at = (pixel * (TALL * WIDE) + i * WIDE + j) * channels
            total += tl.load(whole + at[:, None] + c[None, :], mask=there & inside[:, None], other=0.0)
    at = (image * xb + (place // width) * xh + (place % width) * xw) * UNIT
    tl.store(x + client.to(tl.int64) * xn * UNIT + at[:, None] + c[None, :], total, mask=there)


Window = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]  # stride, padding and dilation


def see(x: Tensor, sides: tuple[int, int], outputs: tuple[int, int], window: Window) -> Tensor:
    """Return what every output pixel of x[N, B, C, H, W] sees, [N, pixels, h w C]."""
    clients, images, channels, height, width = x.shape
    pixels, numbers = images * outputs[0] * outputs[1], sides[0] * sides[1] * channels
    seen = x.new_empty(clients, pixels, numbers)
    n, b, c, h, w = x.stride()
    tiles, moves = clients * triton.cdiv(pixels, PIXELS), [number for pair in window for number in pair]
    if c == 1 and channels % ENOUGH == 0 and all(step % UNIT == 0 for step in (n, b, h, w)):
        places, units = sides[0] * sides[1], [number // UNIT for number in (channels, n, b, h, w)]
        _see_wide[(tiles, places, triton.cdiv(channels, WIDE))](
            *(x, seen, pixels, places, *outputs, height, width, sides[1], *units, *moves),
            UNIT=UNIT, PIXELS=PIXELS, WIDE=WIDE,
        )  # fmt: skip
    else:
        _see[(tiles, triton.cdiv(numbers, NUMBERS))](
            *(x, seen, pixels, numbers, *outputs, height, width, sides[1], channels, n, b, h, w, c, *moves),
            PIXELS=PIXELS, NUMBERS=NUMBERS,
        )  # fmt: skip
    return seen


def add_up(seen: Tensor, like: Tensor, sides: tuple[int, int], outputs: tuple[int, int], window: Window) -> Tensor:
    """Undo `see` for a gradient: the sums for images like these, in the order [B, H, W, N, C] of memory."""
    clients, images, channels, height, width = like.shape
    x = seen.new_empty(images, height, width, clients, channels).permute(3, 0, 4, 1, 2)
    rows = images * height * width
    n, b, _, h, w = x.stride()
    grid = (clients * triton.cdiv(rows, ROWS), triton.cdiv(channels, CHANNELS))
    unit = 1 if channels % UNIT else UNIT
    _add_up[grid](
        *(seen.contiguous(), x, rows, *outputs, height, width, *(number // unit for number in (channels, n, b, h, w))),
        *(number for pair in window for number in pair),
        TALL=sides[0], WIDE=sides[1], UNIT=unit, ROWS=ROWS, CHANNELS=CHANNELS,
    )  # fmt: skip
    return x
