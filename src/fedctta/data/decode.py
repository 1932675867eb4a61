"""Image files as one array: decoded on all cores, made one size, broken files left out and told."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedctta.data.decode_file import decode_or_tell
from fedctta.data.decode_processes import Picture, decode_in_processes
from fedctta.data.progress import bar
from fedctta.errors import UserError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"})

MANY = 10_000
"""Files from which on processes decode them: half a second each to start."""


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


def _decode(paths: Sequence[Path], size: int | None) -> Generator[Picture]:
    """Yield every file's picture, or why it cannot be read: by processes where that pays for their start, or threads.

    Both stop with the first failure (or Ctrl-C), and do not finish what is left.
    """
    cores = os.cpu_count() or 1
    if len(paths) >= MANY and cores > 1:
        yield from decode_in_processes(paths, size, cores)
        return
    threads = ThreadPoolExecutor(cores)
    try:
        yield from threads.map(partial(decode_or_tell, size=size), paths)
    finally:
        threads.shutdown(cancel_futures=True)


def decode_files(
    paths: Sequence[Path], size: int | None, label: str = "reading images", progress: bool | None = None
) -> Decoded:
    """Decode files in parallel, in their order; all have one size, the one given or that of the first."""
    images: NDArray[np.uint8] | None = None
    good, broken = np.zeros(len(paths), bool), {}
    count = 0
    with bar(label, len(paths), progress) as advance, closing(_decode(paths, size)) as decoded:
        for k, (path, found) in enumerate(zip(paths, decoded, strict=True)):
            if k % 100 == 99:
                advance(100)
            if isinstance(found, str):
                broken[str(path)] = found
                continue
            if images is None:
                images = np.empty((len(paths), *found.shape), np.uint8)
            if found.shape != images.shape[1:]:
                sizes = " and ".join(f"{shape[0]} x {shape[1]}" for shape in (found.shape, images.shape[1:]))
                raise OtherSize(f"{path} differs in size from others ({sizes}): add size=64, or another side")
            images[count] = found
            good[k] = True
            count += 1
    return Decoded(np.zeros((0, 0, 0, 3), np.uint8) if images is None else images[:count], good, broken)
