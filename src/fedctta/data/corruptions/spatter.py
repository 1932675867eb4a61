"""Spatter: drops of water or mud on the lens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedctta.data.corruptions.filters import Floats, Images, correlate, gaussian, truncate

SPATTER = (  # mean, std, sigma, threshold, strength of the water or blur of the mud, kind
    (0.62, 0.1, 0.7, 0.70, 0.5, "water"),
    (0.65, 0.1, 0.8, 0.70, 0.5, "water"),
    (0.65, 0.3, 1.0, 0.69, 0.5, "water"),
    (0.65, 0.1, 0.7, 0.69, 0.6, "mud"),
    (0.65, 0.1, 0.5, 0.68, 0.6, "mud"),
)
WATER = np.array([175, 238, 238], np.float32)
MUD = np.array([63, 42, 20], np.float32)
RELIEF = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], np.float32)
BOX = np.full((3, 3), 1 / 9)
FARTHEST = 20.0
STEPS = (
    (1, 0, 1.0),
    (1, 1, 1.4),
    (2, 1, 2.1969),
    (1, 2, 2.1969),
)  # down, right, cost of a step in the distance


def spatter(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """Smooth noise above a threshold is liquid: shining drops of water, or opaque mud."""
    mean, std, _, _, _, _ = SPATTER[severity - 1]
    noise = rng.standard_normal(images.shape[:3], dtype=np.float32)
    return splash(images, severity, noise * np.float32(std) + np.float32(mean))


def splash(images: Images, severity: int, noise: Floats) -> Images:
    """Water: y = x + m (175, 238, 238). Mud: y = (1 - m) x + m (63, 42, 20). Here m [n, h, w] comes from noise."""
    _, _, sigma, threshold, strength, kind = SPATTER[severity - 1]
    layer = gaussian(noise, sigma)
    layer[layer < threshold] = 0
    if kind == "water":
        liquid = (255 * layer).astype(np.int32).astype(np.uint8)  # beyond 255 it wraps round, as in the benchmark
        mask = strength * _sheen(liquid)[..., None]
        return truncate(images + mask * WATER)
    mask = gaussian((layer > threshold).astype(np.float32), strength)
    mask[mask < 0.8] = 0
    return truncate(images * (1 - mask[..., None]) + mask[..., None] * MUD)


def _sheen(liquid: Images) -> Floats:
    """How brightly liquid [n, h, w] shines, 0 to 1: an embossed map of the distance to the drops' outlines."""
    near = correlate(_distance(outlines(liquid)), BOX)
    relief = np.clip(correlate(_equalise(near.astype(np.uint8)), RELIEF), 0, 255)
    shine = liquid * np.rint(correlate(relief, BOX))
    top = shine.max(axis=(1, 2), keepdims=True)
    return np.where(top > 0, shine / np.maximum(top, 1), 0).astype(np.float32)


def outlines(liquid: Images, low: int = 50, high: int = 150) -> NDArray[np.bool_]:
    """Canny's edges of pictures [n, h, w]: ridges of the gradient above `low` that touch one above `high`."""
    from scipy.ndimage import label

    levels = np.pad(liquid.astype(np.int32), ((0, 0), (1, 1), (1, 1)), mode="edge")
    across = levels[:, :, 2:] - levels[:, :, :-2]
    down = levels[:, 2:] - levels[:, :-2]
    gx = across[:, :-2] + 2 * across[:, 1:-1] + across[:, 2:]
    gy = down[:, :, :-2] + 2 * down[:, :, 1:-1] + down[:, :, 2:]
    size = np.abs(gx) + np.abs(gy)
    height, width = size.shape[1:]
    around = np.pad(size, ((0, 0), (1, 1), (1, 1)))

    def at(dy: int, dx: int) -> NDArray[np.int32]:
        return around[:, 1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width]

    flat = np.abs(gy) < np.tan(np.pi / 8) * np.abs(gx)
    steep = np.abs(gy) > np.tan(3 * np.pi / 8) * np.abs(gx)
    falling = (gx < 0) != (gy < 0)
    slant = np.where(falling, (size > at(-1, 1)) & (size > at(1, -1)), (size > at(-1, -1)) & (size > at(1, 1)))
    upright = (size > at(-1, 0)) & (size >= at(1, 0))
    level = (size > at(0, -1)) & (size >= at(0, 1))
    ridge = (size > low) & np.where(flat, level, np.where(steep, upright, slant))
    within = np.zeros((3, 3, 3), bool)
    within[1] = True  # neighbours in the same picture only
    parts, count = label(ridge, within)
    strong = np.zeros(count + 1, bool)
    strong[parts[ridge & (size > high)]] = True
    edges: NDArray[np.bool_] = strong[parts]
    return edges


def _distance(edges: NDArray[np.bool_]) -> Floats:
    """Distance to the nearest edge, at most 20, as the cheapest walk in steps of 1, 1.4 and 2.1969 (knight's)."""
    count, height, width = edges.shape
    field = np.full((count, height + 4, width + 4), FARTHEST, np.float32)
    inner = field[:, 2:-2, 2:-2]
    inner[edges] = 0
    moves = {
        (sy * dy, sx * dx): cost
        for down, right, cost in STEPS
        for dy, dx in ((down, right), (right, down))
        for sy in (1, -1)
        for sx in (1, -1)
    }
    while True:
        before = inner.copy()
        for (dy, dx), cost in moves.items():
            there = field[:, 2 + dy : 2 + dy + height, 2 + dx : 2 + dx + width]
            np.minimum(inner, there + np.float32(cost), out=inner)
        if np.array_equal(before, inner):
            return before


def _equalise(levels: Images) -> Floats:
    """Histogram equalisation: a level becomes 255 (share of pixels up to it, those of the lowest level left out)."""
    count = len(levels)
    bins = int(FARTHEST) + 1
    flat = levels.reshape(count, -1).astype(np.int64)
    rows = np.arange(count)[:, None]
    histogram = np.bincount((rows * bins + flat).ravel(), minlength=count * bins).reshape(count, bins)
    lowest = flat.min(axis=1, keepdims=True)
    first = np.take_along_axis(histogram, lowest, axis=1)
    rest = flat.shape[1] - first
    table = np.rint(255 * np.maximum(histogram.cumsum(axis=1) - first, 0) / np.maximum(rest, 1))
    table = np.where(rest == 0, np.arange(bins), table)
    return np.take_along_axis(table, flat, axis=1).reshape(levels.shape).astype(np.float32)
