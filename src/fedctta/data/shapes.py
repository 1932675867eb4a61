"""The embedded data set: ten kinds of shape, drawn here, so that everything runs without a network.

Each class is a function f(u, v) of the plane, positive inside and about a signed distance, in units of the
shape's radius r. A pixel's coverage is c = clip(1/2 + r f, 0, 1) and the image is (1 - c) ground + c figure.
Place, size, turn, colours, shading and texture are random.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedctta.data.cache import SPLITS, Images
from fedctta.errors import UserError, unknown

Plane = NDArray[np.float64]

VERSION = 1
"""Goes up whenever the drawings change."""

SIDE = 32
SIZES = {"train": (8000, 10), "test": (2000, 20)}
"""Number of images and seed of each split."""

_CHUNK = 500


def _disc(u: Plane, v: Plane, radius: float = 1.0) -> Plane:
    return radius - np.hypot(u, v)


def _ring(u: Plane, v: Plane) -> Plane:
    return np.asarray(0.25 - np.abs(np.hypot(u, v) - 0.75))


def _square(u: Plane, v: Plane, half: float = 0.8) -> Plane:
    return half - np.maximum(np.abs(u), np.abs(v))


def _triangle(u: Plane, v: Plane) -> Plane:
    slanted: Plane = np.sqrt(0.75) * np.abs(u) + 0.5 * v
    return np.asarray(0.55 - np.maximum(slanted, -v))


def _cross(u: Plane, v: Plane) -> Plane:
    a, b = np.abs(u), np.abs(v)
    return np.minimum(0.33 - np.minimum(a, b), 1.0 - np.maximum(a, b))


def _star(u: Plane, v: Plane) -> Plane:
    # fold the plane into one of the ten mirrored wedges; its edge runs from (1.1, 0) to the inner corner
    wedge = np.pi / 5
    angle = np.abs(np.mod(np.arctan2(v, u) + wedge, 2 * wedge) - wedge)
    radius = np.hypot(u, v)
    x, y = radius * np.cos(angle), radius * np.sin(angle)
    outer, inner = 1.1, 0.45
    along = np.array([inner * np.cos(wedge) - outer, inner * np.sin(wedge)])
    across = np.array([along[1], -along[0]]) / np.hypot(*along)
    return np.asarray(across[0] * (outer - x) - across[1] * y)


def _crescent(u: Plane, v: Plane) -> Plane:
    return np.minimum(_disc(u, v), -_disc(u - 0.5, v, 0.8))


def _heart(u: Plane, v: Plane) -> Plane:
    # a square with a half disc on two neighbouring sides
    a, x, y = 0.55, u + 0.2, v + 0.2
    return np.maximum(_square(x, y, a), np.maximum(_disc(x - a, y, a), _disc(x, y - a, a)))


def _waves(x: Plane, period: float) -> Plane:
    """Return a triangle wave: the signed distance to the nearest edge of stripes half a period wide."""
    return np.asarray(np.abs(np.mod(x, period) - period / 2) - period / 4)


def _stripes(u: Plane, v: Plane) -> Plane:
    return np.minimum(_disc(u, v), _waves(u, 0.7))


def _checker(u: Plane, v: Plane) -> Plane:
    a, b = _waves(u, 1.2), _waves(v, 1.2)
    cells: Plane = np.sign(a * b) * np.minimum(np.abs(a), np.abs(b))
    return np.minimum(_square(u, v, 0.9), cells)


KINDS: dict[str, Callable[[Plane, Plane], Plane]] = {
    "disc": _disc,
    "ring": _ring,
    "square": _square,
    "triangle": _triangle,
    "cross": _cross,
    "star": _star,
    "crescent": _crescent,
    "heart": _heart,
    "stripes": _stripes,
    "checker": _checker,
}


def _colour(random: np.random.Generator, n: int) -> tuple[Plane, Plane]:
    """Return n ground and n figure colours [n,1,1,3] .35 to .8 apart, in a random direction of colour."""
    ground = random.uniform(0.2, 0.8, (n, 3))
    step = random.uniform(-1.0, 1.0, (n, 3))
    step *= random.uniform(0.35, 0.8, (n, 1)) / np.linalg.norm(step, axis=1, keepdims=True)
    outside = np.abs(ground + step - 0.5) > 0.5
    figure = ground + np.where(outside, -step, step)
    return ground[:, None, None], figure[:, None, None]


def _ripple(random: np.random.Generator, n: int, x: Plane, y: Plane, longest: float, shortest: float) -> Plane:
    """Return n sine waves [n,H,W,1] of random direction, phase and wavelength (in pixels)."""
    turn, phase = random.uniform(0.0, 2 * np.pi, (2, n, 1, 1))
    pitch = 2 * np.pi / random.uniform(shortest, longest, (n, 1, 1))
    return np.asarray(np.sin(pitch * (x * np.cos(turn) + y * np.sin(turn)) + phase))[..., None]


def _draw_chunk(labels: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.uint8]:
    """Draw one image for each label."""
    n = len(labels)
    y, x = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    radius = random.uniform(6.0, 12.0, (n, 1, 1))
    turn = random.uniform(0.0, 2 * np.pi, (n, 1, 1))
    # the centre moves as far as the frame allows, so that the whole figure is always seen
    left, down = random.uniform(-1.0, 1.0, (2, n, 1, 1)) * (SIDE / 2 - radius)
    a, b = (x - left) / radius, (y - down) / radius
    u, v = a * np.cos(turn) + b * np.sin(turn), b * np.cos(turn) - a * np.sin(turn)
    inside = np.empty((n, SIDE, SIDE))
    for label, kind in enumerate(KINDS.values()):
        mine = labels == label
        inside[mine] = kind(u[mine], v[mine])
    coverage = np.clip(0.5 + inside * radius, 0.0, 1.0)[..., None]

    ground, figure = _colour(random, n)
    shade = 0.12 * _ripple(random, n, x, y, 120.0, 50.0)
    texture = 0.06 * _ripple(random, n, x, y, 16.0, 5.0) + random.uniform(-0.04, 0.04, (n, SIDE, SIDE, 3))
    picture = ground + coverage * (figure - ground) + shade + texture
    return np.floor(np.clip(picture, 0.0, 1.0) * 255 + 0.5).astype(np.uint8)


def draw(n: int, seed: int) -> Images:
    """Draw n images, equally many of each class, in random order; the same seed gives the same images."""
    if n < 1:
        raise UserError(f"cannot draw {n} images; ask for at least 1")
    random = np.random.Generator(np.random.PCG64(seed))
    labels = random.permutation(np.arange(n, dtype=np.int64) % len(KINDS))
    chunks = [_draw_chunk(labels[start : start + _CHUNK], random) for start in range(0, n, _CHUNK)]
    return Images(np.concatenate(chunks), labels, tuple(KINDS))


@lru_cache(maxsize=2)
def load(split: str) -> Images:
    """Return the "train" split (8,000 images) or the "test" split (2,000), read-only, drawn on first use."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    data = draw(*SIZES[split])
    data.images.flags.writeable = False
    data.labels.flags.writeable = False
    return data
