"""The embedded segmentation set: scenes of overlapping objects, drawn here, with the class of every pixel known.

Objects are painted one over the other on a textured ground. Where an object covers a share c of a pixel, the pixel
becomes (1 - c) what was there + c the object's colour, and it belongs to the last object with c > 1/2. A class is a
shape (see `shapes`) and a range of colours; some ranges overlap, so that both are needed to tell classes apart.

`SHIFTS` are the domains: the same scenes as another sensor or another weather would show them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedctta.data.cache import SPLITS
from fedctta.data.corruptions import corrupt
from fedctta.data.shapes import KINDS, Plane, _ripple
from fedctta.errors import UserError, unknown

Pictures = NDArray[np.uint8]
Shift = Callable[[Pictures, int], Pictures]
"""A domain: (images [n, H, W, 3], seed) -> images of the same scenes; the input is left as it is."""

VERSION = 1
"""Goes up whenever the drawings or the shifts change."""

SIDE = 48
SIZES = {"train": (2000, 30), "test": (400, 40)}
"""Number of images and seed of each split."""

OBJECTS = {
    "disc": (0.75, 0.35, 0.25),
    "square": (0.30, 0.60, 0.35),
    "cross": (0.30, 0.40, 0.75),
    "ring": (0.75, 0.70, 0.30),
}
"""The shape of each class but the ground, and the middle of its colours."""

CLASSES = ("ground", *OBJECTS)
FEWEST, MOST = 2, 4
SPREAD = 0.2
"""How far an object's colours may lie from the middle of its class."""

_CHUNK = 500


@dataclass(frozen=True)
class Scenes:
    """Images uint8 [n, H, W, 3], masks uint8 [n, H, W] with the class of every pixel, and the class names."""

    images: NDArray[np.uint8]
    masks: NDArray[np.uint8]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)


def _paint(picture: Plane, masks: NDArray[np.uint8], here: NDArray[np.bool_], random: np.random.Generator) -> None:
    """Put one object of random class, place, size and turn onto every scene where `here` [n] says so."""
    n = len(picture)
    y, x = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    labels = random.integers(1, len(CLASSES), n)
    radius = random.uniform(8.0, 14.0, (n, 1, 1))
    turn = random.uniform(0.0, 2 * np.pi, (n, 1, 1))
    left, down = random.uniform(-0.42 * SIDE, 0.42 * SIDE, (2, n, 1, 1))
    a, b = (x - left) / radius, (y - down) / radius
    u, v = a * np.cos(turn) + b * np.sin(turn), b * np.cos(turn) - a * np.sin(turn)
    inside = np.empty((n, SIDE, SIDE))
    for label, kind in enumerate(OBJECTS, 1):
        inside[labels == label] = KINDS[kind](u[labels == label], v[labels == label])
    inside[~here] = -1.0
    coverage = np.clip(0.5 + inside * radius, 0.0, 1.0)[..., None]
    middle = np.array(list(OBJECTS.values()))[labels - 1]
    colour = (middle + random.uniform(-SPREAD, SPREAD, (n, 3)))[:, None, None]
    colour = colour + 0.06 * _ripple(random, n, x, y, 9.0, 4.0)
    picture += coverage * (colour - picture)
    np.copyto(masks, labels[:, None, None].astype(np.uint8), where=inside > 0)


def _draw_chunk(n: int, random: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Draw n scenes."""
    y, x = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    grey = random.uniform(0.3, 0.7, (n, 1, 1, 1)) + random.uniform(-0.1, 0.1, (n, 1, 1, 3))
    picture = grey + 0.05 * _ripple(random, n, x, y, 20.0, 6.0) + 0.04 * _ripple(random, n, x, y, 6.0, 3.0)
    masks = np.zeros((n, SIDE, SIDE), np.uint8)
    objects = random.integers(FEWEST, MOST + 1, n)
    for k in range(MOST):
        _paint(picture, masks, objects > k, random)
    picture += 0.08 * _ripple(random, n, x, y, 150.0, 70.0) + random.uniform(-0.04, 0.04, picture.shape)
    return _bytes(picture), masks


def _bytes(picture: Plane) -> NDArray[np.uint8]:
    """Round values in [0, 1] to 0..255; whatever lies beyond is clipped."""
    return np.floor(np.clip(picture, 0.0, 1.0) * 255 + 0.5).astype(np.uint8)


def draw(n: int, seed: int) -> Scenes:
    """Draw n scenes; the same seed gives the same scenes."""
    if n < 1:
        raise UserError(f"cannot draw {n} scenes; ask for at least 1")
    random = np.random.Generator(np.random.PCG64(seed))
    images, masks = zip(*(_draw_chunk(min(_CHUNK, n - k), random) for k in range(0, n, _CHUNK)), strict=True)
    return Scenes(np.concatenate(images), np.concatenate(masks), CLASSES)


@lru_cache(maxsize=2)
def load(split: str) -> Scenes:
    """Return the "train" split (2,000 scenes) or the "test" split (400), read-only, drawn on first use."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    data = draw(*SIZES[split])
    data.images.flags.writeable = False
    data.masks.flags.writeable = False
    return data


def night(images: Pictures, seed: int) -> Pictures:
    """Dark and bluish, y = (.33, .38, .50) x, with the noise of a sensor at its limit."""
    noise = np.random.default_rng([seed, 1]).normal(0.0, 0.03, images.shape)
    return _bytes(images / 255 * np.array([0.33, 0.38, 0.50]) + noise)


def fog(images: Pictures, seed: int) -> Pictures:
    """Haze in drifts: the corruption of that name at its strongest."""
    return corrupt(images, "fog", 5, seed)


def snow(images: Pictures, seed: int) -> Pictures:
    """Dense flakes before a pale scene, .5 x + .35: the corruption of that name at its strongest."""
    return corrupt(_bytes(images / 510 + 0.35), "snow", 5, seed)


def scanner(images: Pictures, seed: int) -> Pictures:
    """Another camera, y = (.72, .60, .42) x + .3 out of focus: little contrast and a warm cast."""
    return corrupt(_bytes(images / 255 * np.array([0.72, 0.60, 0.42]) + 0.3), "gaussian_blur", 5, seed)


SHIFTS: dict[str, Shift] = {"night": night, "fog": fog, "snow": snow, "scanner": scanner}
