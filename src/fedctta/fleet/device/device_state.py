"""What a device keeps over restarts: its client, what watches it, and how far it has come. Written whole.

    device.safetensors      what it goes on from
    health.json             how it fares, for people and monitors

A state may be some batches older than the predictions, never newer: a device that was killed goes on with the images
that are not predicted yet and the model of the last save. How often to save follows from what saving costs. While the
disk is full, a device goes on predicting and tries again from time to time.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from types import TracebackType

from fedctta.errors import NoRoom, UserError
from fedctta.files import lock, make_writable, open_tensors, write_tensors
from fedctta.fleet.device.health_report import HEALTH, write_health
from fedctta.fleet.device.sources import shares_images
from fedctta.online.adaptation import Adaptation

log = logging.getLogger("fedctta.fleet")

SHARE = 0.01
"""Of a device's time that saving may take."""

FULL = 10.0
"""Seconds until a state for which there was no room is offered again."""


@dataclass(frozen=True)
class StreamPosition:
    """How far a device has come: batches seen, images predicted, the last download it took, the size of its images."""

    batches: int = 0
    images: int = 0
    run: str = ""
    round: int = -1
    size: tuple[int, ...] = ()


class DeviceState:
    """The state folder of one device, which is locked while the device lives."""

    def __init__(self, folder: Path, made_by: str, every: int = 0, data: str = "") -> None:
        self._new, self._data = not folder.exists(), data
        self.fresh = not (folder / "lock").exists()  # no device has run on it
        make_writable(folder)
        self.path, self._made_by, self._every = folder / "device.safetensors", made_by, every
        self._lock = lock(folder / "lock", f"another device runs on {folder}: stop it, or choose another --state")
        self._saved, self._next, self._at = 0, 0.0, StreamPosition()
        self._full = False
        self.seconds = 0.0

    def __enter__(self) -> DeviceState:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Unlock the folder; if this device made it and is refused before its first prediction, remove it before."""
        folder = self.path.parent
        if self._new and isinstance(error, UserError) and {path.name for path in folder.iterdir()} == {"lock"}:
            (folder / "lock").unlink()
            with suppress(OSError):  # another device has come
                folder.rmdir()
        self._lock.close()

    def load(self, adaptation: Adaptation) -> StreamPosition:
        """Let the adaptation go on from what is saved, if something is; return the place."""
        if not self.path.exists():
            return StreamPosition()
        damaged = f"{self.path} is damaged: delete it to begin with the source model"
        with open_tensors(self.path, "device", damaged) as (header, file):
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
            made_by, size = header.pop("made_by"), tuple(header.pop("size", ()))
            data, place = header.pop("data", self._data), StreamPosition(**header, size=size)
        if made_by != self._made_by or not adaptation.restore(tensors):
            raise UserError(
                f"{self.path} is the state of another model, weights or adapter: choose another --state, or delete it"
            )
        if not shares_images(data, self._data):
            raise UserError(f"the state in {self.path.parent} is of --data {data}: choose another --state")
        self._saved = place.batches
        return place if data == self._data else replace(place, size=())

    def offer(self, adaptation: Adaptation, place: StreamPosition) -> None:
        """Save if it is time: after a fixed number of batches, or as often as costs little time."""
        due = place.batches - self._saved >= self._every if self._every else perf_counter() >= self._next
        if not due or (self._full and perf_counter() < self._next):
            return
        try:
            self.save(adaptation, place)
        except NoRoom as error:
            if not self._full:
                log.warning("%s; predicting goes on, but what is learnt from now on is not kept over a restart", error)
            self._full, self._next = True, perf_counter() + FULL

    def save(self, adaptation: Adaptation, place: StreamPosition) -> None:
        """Write the state, unless it is the one written last."""
        if place == self._at:
            return
        began = perf_counter()
        header = {"made_by": self._made_by, "data": self._data, **asdict(place)}
        write_tensors(self.path, adaptation.state(), "device", header, sync=True, private=True)
        write_health(self.path.with_name(HEALTH), adaptation)
        if self._full:
            log.info("there is room again: saved %s", self.path)
        self._saved, self._at, self._full = place.batches, place, False
        spent = perf_counter() - began
        self.seconds += spent
        self._next = perf_counter() + spent / SHARE
