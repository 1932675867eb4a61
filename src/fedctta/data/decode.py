"""Image files as one array: decoded by several threads, made one size, broken files left out and told."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedctta.data.progress import bar
from fedctta.errors import UserError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"})


class Decoded(NamedTuple):
    """Pictures uint8 [n, H, W, 3] of the files that could be read, which they are, and why the others could not."""

    images: NDArray[np.uint8]
    good: NDArray[np.bool_]
    broken: dict[str, str]


class OtherSize(UserError):
    """Files differ in size, and none to resize them to was given."""


def is_image(path: Path) -> bool:
    """Whether it has the name of an image file, and is not hidden."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def decode_file(path: Path, size: int | None) -> NDArray[np.uint8]:
    """Read one file as RGB [H, W, 3]; OSError or ValueError if it is no whole picture with 8 bits per value.

    With `size`, the shorter side is resized to it (bicubic, over all pixels that fall into one) and the middle square
    is cut out. The camera's orientation is applied.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as opened:
            if opened.mode[0] in "IF":
                raise ValueError("has more than 8 bits per value")
            picture = ImageOps.exif_transpose(opened).convert("RGB")
    except (SyntaxError, Image.DecompressionBombError) as error:  # what Pillow raises for some damaged files
        raise ValueError(str(error)) from error
    if size is not None and picture.size != (size, size):
        picture = ImageOps.fit(picture, (size, size), Image.Resampling.BICUBIC)
    return np.asarray(picture)


@contextmanager
def _threads() -> Iterator[ThreadPoolExecutor]:
    """Give threads that stop with the first failure (or Ctrl-C), and do not finish what is left."""
    threads = ThreadPoolExecutor(os.cpu_count())
    try:
        yield threads
    finally:
        threads.shutdown(cancel_futures=True)


def decode_files(
    paths: Sequence[Path], size: int | None, label: str = "reading images", progress: bool | None = None
) -> Decoded:
    """Decode files in parallel, in their order; all have one size, the one given or that of the first."""

    def read(path: Path) -> NDArray[np.uint8] | str:
        try:
            return decode_file(path, size)
        except (OSError, ValueError) as error:
            return " ".join(str(error).replace(f"'{path}'", "").split()) or type(error).__name__

    images: NDArray[np.uint8] | None = None
    good, broken = np.zeros(len(paths), bool), {}
    with bar(label, len(paths), progress) as advance, _threads() as threads:
        for k, (path, found) in enumerate(zip(paths, threads.map(read, paths), strict=True)):
            advance(1)
            if isinstance(found, str):
                broken[str(path)] = found
                continue
            if images is None:
                images = np.empty((len(paths), *found.shape), np.uint8)
            if found.shape != images.shape[1:]:
                sizes = " and ".join(f"{shape[0]} x {shape[1]}" for shape in (found.shape, images.shape[1:]))
                raise OtherSize(f"{path} differs in size from others ({sizes}): add size=64, or another side")
            images[good.sum()] = found
            good[k] = True
    return Decoded(np.zeros((0, 0, 0, 3), np.uint8) if images is None else images[: good.sum()], good, broken)
