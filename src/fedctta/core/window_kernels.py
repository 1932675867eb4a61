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
ROWS, CHANNELS = 32, 32  # of a tile of the image's own pixels


@triton.jit(
    do_not_specialize=[
        *("pixels", "numbers", "down", "across", "height", "width", "sides", "channels"),
        *("step_h", "step_w", "pad_h", "pad_w", "gap_h", "gap_w"),
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
    c, window = k % channels, k // channels
    h = ((place // across) * step_h - pad_h)[:, None] + ((window // sides) * gap_h)[None, :]
    w = ((place % across) * step_w - pad_w)[:, None] + ((window % sides) * gap_w)[None, :]
    there = (p < pixels)[:, None] & (k < numbers)[None, :]
    inside = there & (h >= 0) & (h < height) & (w >= 0) & (w < width)
    at = (image * xb)[:, None] + h * xh + w * xw + (c * xc)[None, :]
    value = tl.load(x + client.to(tl.int64) * xn + at, mask=inside, other=0.0)
    to = seen + (client * pixels).to(tl.int64) * numbers
    tl.store(to + p[:, None] * numbers + k[None, :], value, mask=there)


@triton.jit(
    do_not_specialize=[
        *("rows", "down", "across", "height", "width", "channels"),
        *("step_h", "step_w", "pad_h", "pad_w", "gap_h", "gap_w"),
    ]
)
def _add_up(
    seen, x, rows, down, across, height, width, channels, xn, xb, xh, xw,
    step_h, step_w, pad_h, pad_w, gap_h, gap_w, TALL: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
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
    at = image * xb + (place // width) * xh + (place % width) * xw
    tl.store(x + client.to(tl.int64) * xn + at[:, None] + c[None, :], total, mask=there)


Window = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]  # stride, padding and dilation


def see(x: Tensor, sides: tuple[int, int], outputs: tuple[int, int], window: Window) -> Tensor:
    """Return what every output pixel of x[N, B, C, H, W] sees, [N, pixels, h w C]."""
    clients, images, channels, height, width = x.shape
    pixels, numbers = images * outputs[0] * outputs[1], sides[0] * sides[1] * channels
    seen = x.new_empty(clients, pixels, numbers)
    n, b, c, h, w = x.stride()
    grid = (clients * triton.cdiv(pixels, PIXELS), triton.cdiv(numbers, NUMBERS))
    _see[grid](
        *(x, seen, pixels, numbers, *outputs, height, width, sides[1], channels, n, b, h, w, c),
        *(number for pair in window for number in pair),
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
    _add_up[grid](
        *(seen.contiguous(), x, rows, *outputs, height, width, channels, n, b, h, w),
        *(number for pair in window for number in pair),
        TALL=sides[0], WIDE=sides[1], ROWS=ROWS, CHANNELS=CHANNELS,
    )  # fmt: skip
    return x
