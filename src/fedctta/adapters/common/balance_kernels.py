"""Kernels that balance statistics over classes on a GPU, in Triton; import this file there, and nowhere else.

They compute `balanced: move_statistics` with gamma = 0 and `balanced: over_classes`, and the gradient of the latter's
result, by channel: with delta_k, gap_k and o_k = mean_k - centre as there, d_b an image's distance from the centre, and
gradients a of the mean and b of the variance over K classes

    G_k = a / K + 2 b (mean_k + delta_k - mean) / (K - correction)      H_k = b / K, or 0 where a variance is held at 0
    of an image's mean      sum_k [b in k] m_k (G_k - 2 delta_k H_k - 2 o_k H_k + 2 d_b H_k)
    of an image's variance  sum_k [b in k] m_k H_k
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

CHANNELS, WARPS = 32, 2  # of a tile
COUNTS = ["images", "classes", "channels", "correction", "nn", "nk", "nb"]


@triton.jit
def _find_centre(mean, classes, channels, c, there):
    centre = tl.load(mean + c, mask=there, other=0.0)
    for k in range(1, classes):
        centre += tl.load(mean + k * channels + c, mask=there, other=0.0)
    return centre / classes


@triton.jit
def _move(old, spread, belongs, rate, centre, apart, power):
    """Return delta_k, the variance before it is held above 0, and o_k."""
    size = tl.sum(belongs, axis=0)
    first = tl.sum(belongs[:, None] * apart, axis=0)
    second = tl.sum(belongs[:, None] * power, axis=0)
    offset = old - centre
    delta = rate * (first - size * offset)
    gap = rate * (second - 2.0 * offset * first + size * offset * offset) - delta * delta
    return delta, spread + gap - rate * size * spread, offset


@triton.jit(do_not_specialize=COUNTS)
def _balance(
    image_mean, image_var, class_mean, class_var, members, rates, new_mean, new_var, mean, var,
    images, classes, channels, correction, nn, nk, nb, IMAGES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(0)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    b = tl.arange(0, IMAGES)
    inside = c < channels
    there = (b < images)[:, None] & inside[None, :]
    at, of_class = client * images * channels + b[:, None] * channels + c[None, :], client * classes * channels
    centre = _find_centre(class_mean + of_class, classes, channels, c, inside)
    apart = tl.where(there, tl.load(image_mean + at, mask=there, other=0.0) - centre[None, :], 0.0)
    power = tl.load(image_var + at, mask=there, other=0.0) + apart * apart
    whole = tl.zeros([CHANNELS], tl.float32)
    between = tl.zeros([CHANNELS], tl.float32)
    within = tl.zeros([CHANNELS], tl.float32)
    for k in range(classes):
        place = of_class + k * channels + c
        belongs = tl.load(members + client * nn + k * nk + b * nb, mask=b < images, other=0.0)
        old = tl.load(class_mean + place, mask=inside, other=0.0)
        spread = tl.load(class_var + place, mask=inside, other=0.0)
        rate = tl.load(rates + client * classes + k)
        delta, wide, _offset = _move(old, spread, belongs, rate, centre, apart, power)
        now = old + delta
        wide = tl.maximum(wide, 0.0)
        tl.store(new_mean + place, now, mask=inside)
        tl.store(new_var + place, wide, mask=inside)
        away = now - whole
        whole += away / (k + 1)
        between += away * (now - whole)
        within += wide
    tl.store(mean + client * channels + c, whole, mask=inside)
    tl.store(var + client * channels + c, within / classes + between / (classes - correction), mask=inside)


@triton.jit(do_not_specialize=COUNTS)
def _gradient(
    of_mean, of_var, image_mean, image_var, class_mean, class_var, members, rates, mean, of_image_mean, of_image_var,
    images, classes, channels, correction, nn, nk, nb, IMAGES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(0)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    b = tl.arange(0, IMAGES)
    inside = c < channels
    there = (b < images)[:, None] & inside[None, :]
    at, of_class = client * images * channels + b[:, None] * channels + c[None, :], client * classes * channels
    centre = _find_centre(class_mean + of_class, classes, channels, c, inside)
    apart = tl.where(there, tl.load(image_mean + at, mask=there, other=0.0) - centre[None, :], 0.0)
    power = tl.load(image_var + at, mask=there, other=0.0) + apart * apart
    whole = tl.load(mean + client * channels + c, mask=inside, other=0.0)
    g_mean = tl.load(of_mean + client * channels + c, mask=inside, other=0.0)
    g_var = tl.load(of_var + client * channels + c, mask=inside, other=0.0)
    to_mean = tl.zeros([IMAGES, CHANNELS], tl.float32)
    to_var = tl.zeros([IMAGES, CHANNELS], tl.float32)
    for k in range(classes):
        place = of_class + k * channels + c
        belongs = tl.load(members + client * nn + k * nk + b * nb, mask=b < images, other=0.0)
        old = tl.load(class_mean + place, mask=inside, other=0.0)
        spread = tl.load(class_var + place, mask=inside, other=0.0)
        rate = tl.load(rates + client * classes + k)
        delta, wide, offset = _move(old, spread, belongs, rate, centre, apart, power)
        g = g_mean / classes + 2.0 * g_var * (old + delta - whole) / (classes - correction)
        h = tl.where(wide >= 0.0, g_var / classes, 0.0)
        common = rate * (g - 2.0 * (delta + offset) * h)
        to_mean += belongs[:, None] * (common[None, :] + 2.0 * apart * (rate * h)[None, :])
        to_var += belongs[:, None] * (rate * h)[None, :]
    tl.store(of_image_mean + at, to_mean, mask=there)
    tl.store(of_image_var + at, to_var, mask=there)


def balance(
    images: tuple[Tensor, Tensor], classes: tuple[Tensor, Tensor], members: Tensor, rates: Tensor, correction: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the statistics of the classes [N, K, C] after images[N, B, C], and those over classes [N, C].

    Members [N, K, B] say which images are of which class; all other tensors lie without gaps.
    """
    new = classes[0].new_empty(2, *classes[0].shape).unbind()
    over = classes[0].new_empty(2, len(classes[0]), classes[0].shape[-1]).unbind()
    _balance[_grid(images[0])](
        *(*images, *classes, members, rates, *new, *over, *_counts(images[0], classes[0], correction)),
        *members.stride(), IMAGES=triton.next_power_of_2(images[0].shape[1]), CHANNELS=CHANNELS, num_warps=WARPS,
    )  # fmt: skip
    return new[0], new[1], over[0], over[1]


def balance_gradient(
    gradients: tuple[Tensor, Tensor],
    images: tuple[Tensor, Tensor],
    classes: tuple[Tensor, Tensor],
    members: Tensor,
    rates: Tensor,
    mean: Tensor,
    correction: int,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of images[N, B, C], given those of the statistics over classes [N, C]."""
    of_mean, of_var = images[0].new_empty(2, *images[0].shape).unbind()
    _gradient[_grid(images[0])](
        *(*gradients, *images, *classes, members, rates, mean, of_mean, of_var),
        *(*_counts(images[0], classes[0], correction), *members.stride()),
        IMAGES=triton.next_power_of_2(images[0].shape[1]), CHANNELS=CHANNELS, num_warps=WARPS,
    )  # fmt: skip
    return of_mean, of_var


def _grid(images: Tensor) -> tuple[int, int]:
    return len(images), triton.cdiv(images.shape[-1], CHANNELS)


def _counts(images: Tensor, classes: Tensor, correction: int) -> tuple[int, int, int, int]:
    return images.shape[1], classes.shape[1], images.shape[2], correction
