"""A folder that fills up, as a camera fills it.

A file is taken once it is whole: it has kept its size and times since the look before, and reads as an image. One that
does not is tried again until it has not changed for a while, and is then left out with a line in the log. Order is that
of arrival (the time of the last change of the file or its name). A name is taken once for as long as its file is there.
A folder that is away, as a camera's or a network's may be, is waited for, also if an empty one is in its place then.
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
from fedctta.errors import reason
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
        self._looked, self._away = -LOOK_EVERY, False
        self._place: tuple[int, int] | None = None  # which folder has this path, and what lay there at the last look
        self._there: set[str] = set()

    def take(self, now: float) -> Iterator[tuple[str, Image]]:
        """Yield paths and images in the order of arrival; look into the folder when no file is left, but seldom."""
        if not self._steady and now - self._looked >= LOOK_EVERY:
            self._looked = now
            try:
                self._look()
            except OSError as error:
                self._note_absence(reason(error))
            else:
                self._note_absence("")
        while self._steady:
            stamp, path = self._steady.popleft()
            image = self._read(path, stamp)
            if image is not None:
                yield path, image

    def _note_absence(self, why: str) -> None:
        """Say once that the folder is away, and once that it is back; what was seen in it is kept."""
        if why and not self._away:
            log.warning("cannot read %s: %s; the device waits until it is back", self.folder, why)
        elif self._away and not why:
            log.info("%s is back", self.folder)
        self._away = bool(why)

    def _look(self) -> None:
        place, there = self._find_place(), set[str]()
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
        if self._find_place() == place:  # else another folder has come while we looked
            self._forget(place, there)
        self._steady.extend(sorted((stamp, path) for path, stamp in stamps.items() if self._before.get(path) == stamp))
        self._before = stamps

    def _find_place(self) -> tuple[int, int]:
        about = self.folder.stat()
        return about.st_dev, about.st_ino

    def _forget(self, place: tuple[int, int], there: set[str]) -> None:
        """Forget names whose files are gone, so that `seen` does not grow for ever; not where another folder is."""
        if self._place is None:
            self.seen &= there
        elif self._place == place:
            self.seen -= self._there - there
        self._place, self._there = place, there

    def _read(self, path: str, stamp: Stamp) -> Image | None:
        image = decode_or_tell(Path(path), None)
        if isinstance(image, str):
            if time() - stamp[0] / 1e9 > GIVE_UP_AFTER and os.path.exists(path):  # noqa: PTH110  a path as it is named
                log.warning("left out %s: %s", path, image)
                self.seen.add(path)
            return None
        self.seen.add(path)
        return image
