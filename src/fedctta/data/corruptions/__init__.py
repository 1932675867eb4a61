"""The corruptions of CIFAR-10-C and CIFAR-100-C, for whole arrays of images of any size.

At 32 x 32 pixels the recipes are the benchmark's. At other sizes lengths in pixels stay in pixels, with three
exceptions: elastic lengths are shares of the shorter side, fog is a fractal as large as the next power of two, and
a frost texture too small to cover the image is enlarged.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedctta.data.corruptions import blur, digital, geometry, noise, spatter, weather
from fedctta.data.corruptions.filters import Images, Recipe
from fedctta.data.corruptions.textures import Textures, frost_textures
from fedctta.errors import UserError, unknown

__all__ = [
    "BENCHMARK",
    "DETERMINISTIC",
    "EXTRA",
    "NAMES",
    "RANDOM",
    "VERSION",
    "Textures",
    "corrupt",
    "frost_textures",
]

VERSION = 1
"""Raised whenever the same call gives other images, so that stored ones are made anew."""

_BENCHMARK: dict[str, Recipe] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": partial(weather.frost, textures=()),
    "fog": weather.fog,
    "brightness": digital.brightness,
    "contrast": digital.contrast,
    "elastic_transform": geometry.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
}
_EXTRA: dict[str, Recipe] = {
    "speckle_noise": noise.speckle_noise,
    "gaussian_blur": blur.gaussian_blur,
    "spatter": spatter.spatter,
    "saturate": digital.saturate,
}
_RECIPES = _BENCHMARK | _EXTRA

BENCHMARK: tuple[str, ...] = tuple(_BENCHMARK)
EXTRA: tuple[str, ...] = tuple(_EXTRA)
NAMES: tuple[str, ...] = BENCHMARK + EXTRA
DETERMINISTIC = frozenset(
    [
        "contrast",
        "brightness",
        "saturate",
        "defocus_blur",
        "gaussian_blur",
        "zoom_blur",
        "pixelate",
        "jpeg_compression",
    ]
)
RANDOM = frozenset(NAMES) - DETERMINISTIC

_BLOCK_PIXELS = 2**17  # 128 images of 32 x 32; part of what the random numbers depend on
_MOST_THREADS = 8  # each holds some tens of megabytes


def corrupt(
    images: NDArray[np.uint8],
    name: str,
    severity: int,
    seed: int = 0,
    *,
    textures: Sequence[NDArray[np.uint8]] | None = None,
) -> NDArray[np.uint8]:
    """Corrupt images [n, height, width, 3]; the input is left as it is.

    The same arguments give the same images, and the first n of many images are those that n images give: every
    block of images has its own randomness, drawn for the full block from (seed, name, severity, block).

    Args:
        images: Bytes, each side at least 8 pixels.
        name: One of `NAMES`.
        severity: 1 (mild) to 5 (strong).
        seed: Any whole number from 0 on.
        textures: For frost only: pictures of frost, as `frost_textures().images` gives them.
    """
    _check(images, name, severity, seed, textures)
    recipe = partial(weather.frost, textures=textures or ()) if name == "frost" else _RECIPES[name]
    block = max(1, _BLOCK_PIXELS // (images.shape[1] * images.shape[2]))
    out = np.empty_like(images, order="C")

    def run(index: int) -> None:
        here = slice(index * block, (index + 1) * block)
        some = images[here]
        full = _filled(some, block) if name in RANDOM else some
        rng = np.random.default_rng([seed, zlib.crc32(name.encode()), severity, index])
        out[here] = recipe(full, severity, rng)[: len(some)]

    with ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_THREADS)) as pool:
        list(pool.map(run, range(-(-len(images) // block))))
    return out


def _filled(images: Images, count: int) -> Images:
    """Append black images up to `count`, so that a last, shorter block draws the same random numbers."""
    return np.concatenate([images, np.zeros((count - len(images), *images.shape[1:]), np.uint8)])


def _check(images: NDArray[np.uint8], name: str, severity: int, seed: int, textures: Sequence[Images] | None) -> None:
    if name not in _RECIPES:
        raise unknown("corruption", name, NAMES)
    if severity not in range(1, 6):
        raise UserError(f"severity {severity!r} does not exist: use 1, 2, 3, 4 or 5")
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise UserError(f"seed {seed!r} cannot be used: give a whole number from 0 on")
    if not _is_bytes(images) or images.ndim != 4 or images.shape[3] != 3:
        raise UserError(f"images are {_kind(images)}: give a uint8 array [n, height, width, 3] of values 0 to 255")
    if min(images.shape[1:3]) < 8:
        raise UserError(f"images are {_kind(images)}: enlarge them to at least 8 pixels a side")
    if name != "frost":
        return
    if not textures:
        raise UserError("frost needs pictures of frost: pass textures=frost_textures().images")
    if not all(_is_bytes(t) and t.ndim == 3 and t.shape[2] == 3 and t.size for t in textures):
        raise UserError("a frost texture has the wrong form: give uint8 arrays [height, width, 3]")


def _is_bytes(array: object) -> bool:
    return isinstance(array, np.ndarray) and array.dtype == np.uint8


def _kind(array: object) -> str:
    return f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
