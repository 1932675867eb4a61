"""What several corruptions share: the types, the last step, and filters that are small matrices.

Recipes work in grey levels (0 to 255) rather than in [0, 1]: integers then stay exact in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

if TYPE_CHECKING:  # loaded where they compute: who only asks for names does not wait for them
    import torch

Images = NDArray[np.uint8]
"""Images as stored: [n, height, width, 3]."""

Floats = NDArray[np.float32]
"""Grey levels as numbers; filters take the picture in the last two axes, so colours as [n, 3, height, width]."""

_Levels = TypeVar("_Levels", NDArray[np.float32], NDArray[np.float64])

Recipe = Callable[[Images, int, np.random.Generator], Images]
"""A corruption of a block of images: (images, severity 1 to 5, randomness) -> images."""


def truncate(levels: NDArray[np.floating]) -> Images:
    """Clip to 0..255 and cut the fraction off; the benchmark's files were made so, without rounding.

    The ten-thousandth keeps a whole level whole where float32 falls just short of it.
    """
    short = np.float32(1e-4 if levels.dtype == np.float32 else 0)
    cut: Images = np.clip(levels + short, 0, 255).astype(np.uint8)
    return cut


def planes(images: Images) -> Floats:
    """Put the colours before the picture axes: [n, h, w, 3] -> [n, 3, h, w] as floats."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2), dtype=np.float32)


def pixels(levels: _Levels) -> _Levels:
    """Put the colours last again: [n, 3, h, w] -> [n, h, w, 3]."""
    return levels.transpose(0, 2, 3, 1)


@lru_cache(maxsize=64)
def gaussian_matrix(size: int, sigma: float, mode: str = "nearest", truncate: float = 4.0) -> torch.Tensor:
    """Return the Gaussian filter of one axis as K[size, size], so that filtering is K @ x.

    The radius is floor(truncate * sigma + 1/2) and the border is scipy's `mode`.
    """
    import torch
    from scipy.ndimage import gaussian_filter1d

    pulse = np.eye(size)
    blurred = gaussian_filter1d(pulse, sigma, axis=0, mode=mode, truncate=truncate) if sigma else pulse
    return torch.from_numpy(blurred.astype(np.float32))


@lru_cache(maxsize=256)
def zoom_matrix(size: int, factor: float) -> torch.Tensor:
    """Return the zoom into the middle of one axis as Z[size, size].

    The middle ceil(size / factor) points are stretched linearly, end on end, to round(crop * factor) points, of
    which the middle `size` are kept. Factor 1 is the identity.
    """
    import torch

    crop = math.ceil(size / factor)
    start, stretched = (size - crop) // 2, round(crop * factor)
    at = (np.arange(size) + (stretched - size) // 2) * ((crop - 1) / (stretched - 1))
    below = np.minimum(at.astype(int), crop - 2)
    rows, matrix = np.arange(size), np.zeros((size, size))
    matrix[rows, start + below] = 1 - (at - below)
    matrix[rows, start + below + 1] = at - below
    return torch.from_numpy(matrix.astype(np.float32))


def separable(levels: Floats, rows: torch.Tensor, columns: torch.Tensor) -> Floats:
    """Filter both picture axes: rows @ x @ columns^T.

    Torch multiplies here because numpy's BLAS, called from several threads, can be a hundred times slower.
    """
    import torch

    filtered: Floats = torch.matmul(rows, torch.matmul(torch.from_numpy(levels), columns.T)).numpy()
    return filtered


def gaussian(levels: Floats, sigma: float) -> Floats:
    """Blur the last two axes with a Gaussian that repeats the edge pixel beyond the border."""
    height, width = levels.shape[-2:]
    return separable(levels, gaussian_matrix(height, sigma), gaussian_matrix(width, sigma))


def correlate(levels: _Levels, kernel: NDArray[np.floating]) -> _Levels:
    """Correlate the last two axes with a small odd kernel, mirroring about the edge pixel's centre."""
    reach_y, reach_x = kernel.shape[0] // 2, kernel.shape[1] // 2
    height, width = levels.shape[-2:]
    padded = np.pad(levels, [(0, 0)] * (levels.ndim - 2) + [(reach_y, reach_y), (reach_x, reach_x)], mode="reflect")
    out = np.zeros_like(levels)
    for dy, dx in np.argwhere(kernel):
        out += levels.dtype.type(kernel[dy, dx]) * padded[..., dy : dy + height, dx : dx + width]
    return out


def smear(levels: Floats, radius: int, sigma: float, degrees: NDArray[np.floating]) -> Floats:
    """Smear each picture of [n, c, h, w] to one side, along its own angle, and round to whole grey levels.

    out(y, x) = sum_i k_i in(y + oy_i, x + ox_i), i = 0 .. 2 radius, edge pixels repeated, with k_i proportional to
    exp(-i^2 / 2 sigma^2) and whole offsets oy_i = ceil(i sin a - 1/2), ox_i = ceil(i cos a - 1/2).
    """
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    steps = steps[weights > 1e-7]  # what float32 cannot tell from nothing
    weights = (weights / weights.sum())[steps]
    angles = np.deg2rad(degrees)[:, None]
    oy, ox = (np.ceil(steps * part - 0.5).astype(int) for part in (np.sin(angles), np.cos(angles)))
    reach = int(steps[-1])
    padded = np.pad(levels, ((0, 0), (0, 0), (reach, reach), (reach, reach)), mode="edge")
    windows = sliding_window_view(padded, levels.shape[-2:], axis=(2, 3))
    rows, out = np.arange(len(levels)), np.zeros_like(levels)
    for step, weight in enumerate(weights.astype(np.float32)):
        out += weight * windows[rows, :, oy[:, step] + reach, ox[:, step] + reach]
    return np.rint(out)
