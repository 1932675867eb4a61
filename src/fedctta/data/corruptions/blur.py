"""Blur: out of focus, frosted glass, camera motion and zoom."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedctta.data.corruptions.filters import (
    Floats,
    Images,
    correlate,
    gaussian,
    pixels,
    planes,
    separable,
    smear,
    truncate,
    zoom_matrix,
)

GAUSSIAN_SIGMA = (0.4, 0.6, 0.7, 0.8, 1.0)
DEFOCUS = (
    (0.3, 0.4),
    (0.4, 0.5),
    (0.5, 0.6),
    (1.0, 0.2),
    (1.5, 0.1),
)  # disk radius, sigma that softens its rim
GLASS = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))  # sigma, how often pixels are shuffled
MOTION = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))  # radius, sigma
ZOOM_END = (1.06, 1.11, 1.16, 1.21, 1.26)  # rounding lets the first two ends in and keeps the others out


def gaussian_blur(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """Gaussian blur."""
    return truncate(pixels(gaussian(planes(images), GAUSSIAN_SIGMA[severity - 1])))


def defocus_blur(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """Correlation with a disk whose rim is softened by a 3 x 3 Gaussian.

    In float64: at severity 4 a fifth of all sums are whole levels apart from taps too small for float32.
    """
    return truncate(pixels(correlate(planes(images).astype(np.float64), disk(*DEFOCUS[severity - 1]))))


def glass_blur(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """Blur, let pixels take the colour of a neighbour above and to the left, blur again."""
    sigma, times = GLASS[severity - 1]
    shuffled = truncate(pixels(gaussian(planes(images), sigma)))
    for _ in range(times):
        shuffled = shuffle(shuffled, rng.integers(0, 2, size=(2, *images.shape[:3]), dtype=np.uint8).astype(bool))
    return truncate(pixels(gaussian(planes(shuffled), sigma)))


def shuffle(images: Images, moves: NDArray[np.bool_]) -> Images:
    """Copy to each pixel from row 2 and column 2 on the one at (h - up, w - left); moves[2, n, h, w] = up, left.

    The benchmark walks from the last pixel to the first and means to swap, but its second assignment undoes the
    first through a view, so it copies; the source is always still untouched, hence all copies can be made at once.
    """
    up, left = moves[:, :, 2:, 2:, None]
    here, above = images[:, 2:, 2:], images[:, 1:-1, 2:]
    beside, across = images[:, 2:, 1:-1], images[:, 1:-1, 1:-1]
    out = images.copy()
    out[:, 2:, 2:] = np.where(up, np.where(left, across, above), np.where(left, beside, here))
    return out


def motion_blur(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """Smear each image along its own angle, drawn from -45 to 45 degrees."""
    radius, sigma = MOTION[severity - 1]
    angles = rng.uniform(-45, 45, size=len(images))
    return truncate(pixels(smear(planes(images), radius, sigma, angles)))


def zoom_blur(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """The mean of the image and its zooms by 1.00, 1.01, ...; the image itself so counts twice."""
    factors = (1.0, *np.arange(1, ZOOM_END[severity - 1], 0.01))
    height, width = images.shape[1:3]
    levels = planes(images)
    total = np.zeros_like(levels)
    for factor in factors:
        total += separable(levels, zoom_matrix(height, float(factor)), zoom_matrix(width, float(factor)))
    return truncate(pixels(total / np.float32(len(factors))))


@lru_cache(maxsize=16)
def disk(radius: float, soft: float) -> Floats:
    """Return a normalised disk on a 17 x 17 grid after a 3 x 3 Gaussian."""
    grid = np.arange(-8, 9)
    inside = (grid[:, None] ** 2 + grid**2 <= radius**2).astype(np.float32)
    tap = np.exp(-(np.arange(-1, 2) ** 2) / (2 * soft**2))
    kernel = correlate(inside / inside.sum(), np.outer(tap, tap) / tap.sum() ** 2)
    reach = int(np.abs(grid[np.flatnonzero(kernel.any(0))]).max())
    middle: Floats = kernel[8 - reach : 9 + reach, 8 - reach : 9 + reach]
    return middle
