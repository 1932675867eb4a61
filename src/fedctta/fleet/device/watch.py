"""A folder that fills up, as a camera fills it.

A file is taken once it is whole: it has kept its size and times since the look before, and reads as an image. One that
does not is tried again until it has not changed for a while, and is then left out with a line in the log. Order is that
of arrival (the time of the last change of the file or its name). A name is taken once for as long as its file is there.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, time

import numpy as np

from fedctta.data.decode import is_image
from fedctta.data.decode_file import decode_or_tell
from fedctta.fleet.device.sources import Batch, Image, Sizes, Source, log

LOOK_EVERY = 0.2
GIVE_UP_AFTER = 10.0

Stamp = tuple[int, int, int]


def watch(
    folder: Path,
    batch: int,
    patience: float,
    seen: set[str],
    clock: Callable[[], float] = monotonic,
    size: tuple[int, ...] = (),
) -> Source:
    """Yield batches as they fill up, or smaller ones when the first image has waited for `patience` seconds."""
    arrivals, sizes = Arrivals(folder, seen), Sizes(size)
    waiting: list[tuple[str, Image]] = []
    since = clock()
    while True:
        since = since if waiting else clock()
        for name, image in arrivals.take(clock()):
            if sizes.fits(image, name):
                waiting.append((name, image))
            if len(waiting) == batch:
                break
        if len(waiting) == batch or (waiting and clock() - since >= patience):
            names, images = zip(*waiting, strict=True)
            waiting = []
            yield Batch(np.stack(images), names)
        else:
            yield None


class Arrivals:
    """Tells the files that are new and whole; `seen` are the paths that were taken before."""

    def __init__(self, folder: Path, seen: set[str]) -> None:
        self.folder, self.seen = folder, seen
        self._before: dict[str, Stamp] = {}
        self._steady: deque[tuple[Stamp, str]] = deque()
        self._looked = -LOOK_EVERY

    def take(self, now: float) -> Iterator[tuple[str, Image]]:
        """Yield paths and images in the order of arrival; look into the folder when no file is left, but seldom."""
        if not self._steady and now - self._looked >= LOOK_EVERY:
            self._looked = now
            self._look()
        while self._steady:
            stamp, path = self._steady.popleft()
            image = self._read(path, stamp)
            if image is not None:
                yield path, image

    def _look(self) -> None:
        there: set[str] = set()
        stamps: dict[str, Stamp] = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                there.add(entry.path)
                if entry.path not in self.seen and is_image(Path(entry.name)):
                    try:
                        about = entry.stat()
                    except OSError:  # gone already
                        continue
                    stamps[entry.path] = (about.st_ctime_ns, about.st_mtime_ns, about.st_size)
        self.seen &= there  # so that it does not grow for ever
        self._steady.extend(sorted((stamp, path) for path, stamp in stamps.items() if self._before.get(path) == stamp))
        self._before = stamps

    def _read(self, path: str, stamp: Stamp) -> Image | None:
        image = decode_or_tell(Path(path), None)
        if isinstance(image, str):
            if time() - stamp[0] / 1e9 > GIVE_UP_AFTER:
                log.warning("left out %s: %s", path, image)
                self.seen.add(path)
            return None
        self.seen.add(path)
        return image
