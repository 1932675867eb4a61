"""Geometry: an affine tilt followed by an elastic deformation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedctta.data.corruptions.filters import Floats, Images, gaussian_matrix, pixels, planes, separable, truncate

if TYPE_CHECKING:
    import torch

# Displacement, smoothness and tilt as shares of the shorter side.
ELASTIC = ((0.0, 0.0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03))


def elastic_transform(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """Tilt by moving three points at random, then displace every pixel by a smooth random field."""
    count, height, width, _ = images.shape
    alpha, sigma, tilt = (share * min(height, width) for share in ELASTIC[severity - 1])
    moves = rng.uniform(-tilt, tilt, size=(count, 3, 2))
    noise = rng.uniform(-1, 1, size=(2, count, height, width)).astype(np.float32)
    return truncate(pixels(deform(planes(images), moves, alpha * smooth(noise, sigma))))


def smooth(noise: Floats, sigma: float) -> Floats:
    """Gaussian filter of radius floor(3 sigma + 1/2), mirrored at the border with the edge pixel repeated."""
    height, width = noise.shape[-2:]
    rows, columns = (gaussian_matrix(size, sigma, mode="reflect", truncate=3.0) for size in (height, width))
    return separable(noise, rows, columns)


def deform(levels: Floats, moves: NDArray[np.floating], displacement: Floats) -> Floats:
    """Warp [n, 3, h, w] by the affine map that `moves` define, then by `displacement` = (dx, dy) [2, n, h, w].

    The map takes the points c + (s, s), c + (s, -s), c - (s, s), in (x, y) order with c the centre and s a third
    of the shorter side, to these points plus moves[n, 3, 2]. Both samplings are bilinear; the first mirrors
    about the edge pixel's centre and reads at multiples of 1/32 pixel as OpenCV does, the second mirrors about
    the edge pixel's outer side.
    """
    import torch

    height, width = levels.shape[-2:]
    centre, side = np.array([width // 2, height // 2]), min(height, width) // 3
    points = centre + side * np.array([[1, 1], [1, -1], [-1, -1]])
    x, y = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    moved = np.concatenate([points + moves, np.ones((len(moves), 3, 1))], axis=2)
    back = np.linalg.solve(moved, np.broadcast_to(points.astype(float), moves.shape))  # [n, 3, 2]: (x, y, 1) -> (x, y)
    here = np.stack([x, y, np.ones_like(x)], axis=-1)
    source = np.floor(np.einsum("hwk,nkc->nhwc", here, back) * 32 + 0.5) / 32
    dx, dy = displacement
    target = np.stack([x + dx, y + dy], axis=-1)
    extent = np.array([width, height])
    tilted = _sample(torch.from_numpy(levels), 2 * source / (extent - 1) - 1, align_corners=True)
    return _sample(tilted, (2 * target + 1) / extent - 1, align_corners=False).numpy()


def _sample(levels: torch.Tensor, grid: NDArray[np.floating], *, align_corners: bool) -> torch.Tensor:
    """Bilinear sampling at a grid in [-1, 1]; align_corners says what -1 and 1, and so the mirrors, lie on."""
    import torch
    from torch.nn.functional import grid_sample

    where = torch.from_numpy(grid.astype(np.float32))
    return grid_sample(levels, where, mode="bilinear", padding_mode="reflection", align_corners=align_corners)
