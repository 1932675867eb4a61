"""Where a device's images come from. A source is an iterator of batches; None says that there is nothing just now.

    folder:PATH            the image files in a folder and below it, in the order of their names
    watch:PATH             a folder that fills up, in the order of arrival (see `watch`)
    stdin                  paths, one per line
    python:module:name     any iterable, or a function that gives one, of uint8 arrays [B, H, W, 3] or [H, W, 3]
    stream:dataset=...     one client of a simulated stream (see `simulated`)

An image that was predicted before the device was restarted does not come again: files are known by their path, images
of a stream or of a Python sequence by their number. What a Python generator gives is taken as it comes.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sized
from itertools import islice
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedctta.data.decode import is_image
from fedctta.data.decode_file import decode_or_tell
from fedctta.errors import UserError, unknown
from fedctta.registry import import_object

log = logging.getLogger("fedctta.fleet")

Image = NDArray[np.uint8]
BY_PATH = ("folder", "watch", "stdin")
KINDS = (*BY_PATH, "python", "stream")
SHORT = 0.1  # seconds that a pace waits for by itself; for longer it says that there is nothing just now


class Batch(NamedTuple):
    """Images[B, H, W, 3] and what each is called; labels, where a simulated stream knows them, are for scoring only.

    An image whose label is None does not count: it is not labelled, or was shown before.
    """

    images: Image
    ids: tuple[str, ...]
    labels: tuple[int | None, ...] | None = None


class Done(NamedTuple):
    """What was predicted before: names, how many images, in how many batches, and the size of an image."""

    ids: Collection[str] = ()
    images: int = 0
    batches: int = 0
    size: tuple[int, ...] = ()


Source = Iterator[Batch | None]


def open_source(place: str, batch: int, done: Done, patience: float = 1.0) -> Source:
    """Open the source that `place` names."""
    kind, _, rest = place.partition(":")
    if kind not in KINDS:
        raise unknown("source", kind, KINDS)
    if (kind == "stdin") == bool(rest):
        raise UserError(f"--data {place} is not complete: write stdin, folder:PATH, watch:PATH, python:module:name ...")
    if kind == "stdin":
        lines = (line.strip() for line in sys.stdin)
        return _files((path for path in lines if path and path not in done.ids), batch, done.size)
    if kind == "folder":
        if not (paths := files_below(Path(rest))):
            raise UserError(f"there are no images in {rest}: check the path in --data, or write watch:{rest} to wait")
        return _files((path for path in paths if path not in done.ids), batch, done.size)
    if kind == "watch":
        from fedctta.fleet.device.watch import watch

        return watch(existing(Path(rest)), batch, patience, set(done.ids), size=done.size)
    if kind == "python":
        return _arrays(imported(rest), batch, done.images)
    from fedctta.fleet.simulation.simulated import one_client

    return one_client(rest, batch, done.images)


def shares_images(one: str, other: str) -> bool:
    """Whether what was predicted of one source may be passed over in the other: they are the same, or know paths."""
    return one == other or all(place.partition(":")[0] in BY_PATH for place in (one, other))


def paced(source: Source, seconds: float, clock: Callable[[], float] = monotonic) -> Source:
    """Yield batches at least `seconds` apart, as a camera would."""
    due = clock()
    for batch in source:
        while (wait := due - clock()) > 0:
            if wait > SHORT:
                yield None
            else:
                sleep(wait)
        yield batch
        due = max(due + seconds, clock()) if batch is not None else due


def existing(folder: Path) -> Path:
    """Refuse a folder that is not there."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: check the path in --data")
    return folder


def files_below(folder: Path) -> list[str]:
    """Return the image files in a folder and below it, sorted; hidden ones are left out."""
    found = (path for path in existing(folder).rglob("*") if is_image(path) and path.is_file())
    return sorted(str(path) for path in found)


class Sizes:
    """The first image ever settles the size; others are left out, with a line in the log: a batch has one size."""

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.shape = shape

    def fits(self, image: Image, name: str) -> bool:
        """Whether the image has the size of the first."""
        self.shape = self.shape or image.shape
        if image.shape != self.shape:
            (h, w, *_), (height, width, *_) = image.shape, self.shape
            log.warning(
                "left out %s: it has %dx%d pixels, the first image had %dx%d; another size needs another --state",
                *(name, h, w, height, width),
            )
        return image.shape == self.shape


def _files(paths: Iterable[str], batch: int, size: tuple[int, ...]) -> Source:
    sizes = Sizes(size)

    def readable() -> Iterator[tuple[str, Image]]:
        for path in paths:
            image = decode_or_tell(Path(path), None)
            if isinstance(image, str):
                log.warning("left out %s: %s", path, image)
            elif sizes.fits(image, path):
                yield path, image

    return in_batches(readable(), batch)


def in_batches(named: Iterator[tuple[str, Image]], batch: int) -> Source:
    """Group images, the last group perhaps smaller."""
    while group := list(islice(named, batch)):
        names, images = zip(*group, strict=True)
        yield Batch(np.stack(images), tuple(names))


def imported(place: str) -> Iterable[Any]:
    """Import `module:name` (from the current folder too); a function is called."""
    module, _, name = place.partition(":")
    try:
        found = import_object(module, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"cannot import --data python:{place}: {error}; write python:module:name") from error
    found = found() if isinstance(found, Callable) else found  # type: ignore[arg-type]
    if not isinstance(found, Iterable):
        raise UserError(f"--data python:{place} gives a {type(found).__name__}: it must be an iterable of images")
    return found


def _arrays(items: Iterable[Any], batch: int, done: int) -> Source:
    """Number the images; those of a sequence were perhaps predicted in part before."""
    skip, number = done if isinstance(items, Sized) else 0, 0 if isinstance(items, Sized) else done
    singles: list[Image] = []

    def numbered(images: Image) -> Iterator[Batch]:
        nonlocal skip, number
        over = min(skip, len(images))
        skip, number = skip - over, number + len(images)
        if over < len(images):
            yield Batch(images[over:], tuple(str(n) for n in range(number - len(images) + over, number)))

    for item in items:
        array = np.asarray(item)
        if array.dtype != np.uint8 or array.ndim not in (3, 4) or array.shape[-1] != 3:
            form = f"{array.dtype}{list(array.shape)}"
            raise UserError(f"the Python source gave {form}: give uint8 arrays [B, H, W, 3] or [H, W, 3]")
        if array.ndim == 4:
            yield from numbered(array)
            continue
        singles.append(array)
        if len(singles) == batch:
            yield from numbered(np.stack(singles))
            singles = []
    if singles:
        yield from numbered(np.stack(singles))
