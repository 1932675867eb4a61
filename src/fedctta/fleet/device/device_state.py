"""What a device keeps over restarts: its client, and how far it has come. Written whole, and to the disk.

A state may be some batches older than the predictions, never newer: a device that was killed goes on with the images
that are not predicted yet and the model of the last save. How often to save follows from what saving costs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import torch

from fedctta.core.clients import Client
from fedctta.core.tensors import named
from fedctta.errors import UserError
from fedctta.files import lock, make_writable, open_tensors, write_tensors

SHARE = 0.01
"""Of a device's time that saving may take."""


@dataclass(frozen=True)
class StreamPosition:
    """How far a device has come: batches seen, images predicted, and the last download it took (run and round)."""

    batches: int = 0
    images: int = 0
    run: str = ""
    round: int = -1


class DeviceState:
    """The state folder of one device, which is locked while the device lives."""

    def __init__(self, folder: Path, made_by: str, every: int = 0) -> None:
        make_writable(folder)
        self.path, self._made_by, self._every = folder / "device.safetensors", made_by, every
        self._lock = lock(folder / "lock", f"another device runs on {folder}: stop it, or choose another --state")
        self._saved, self._next, self._at = 0, 0.0, StreamPosition()
        self.seconds = 0.0

    def load(self, like: Client) -> tuple[Client, StreamPosition]:
        """Return the saved client and place, or `like` at the start if nothing is saved."""
        if not self.path.exists():
            return like, StreamPosition()
        damaged = f"{self.path} is damaged: delete it to begin with the source model"
        with open_tensors(self.path, "device", damaged) as (header, file):
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
            made_by, place = header.pop("made_by"), StreamPosition(**header)
        if made_by != self._made_by or not _fits(tensors, _flat(like)):
            raise UserError(
                f"{self.path} is the state of another model, weights or adapter: choose another --state, or delete it"
            )
        flat = {name: torch.empty_like(old).copy_(tensors[name]) for name, old in _flat(like).items()}
        self._saved = place.batches
        own, private = ({n: flat[f"{part}.{n}"] for n in t} for part, t in zip(Client._fields, like, strict=True))
        return Client(own, private), place

    def offer(self, client: Client, place: StreamPosition) -> None:
        """Save if it is time: after a fixed number of batches, or as often as costs little time."""
        due = place.batches - self._saved >= self._every if self._every else perf_counter() >= self._next
        if due:
            self.save(client, place)

    def save(self, client: Client, place: StreamPosition) -> None:
        """Write the state, unless it is the one written last."""
        if place == self._at:
            return
        began = perf_counter()
        header = {"made_by": self._made_by, **asdict(place)}
        write_tensors(self.path, _flat(client), "device", header, sync=True)
        self._saved, self._at = place.batches, place
        spent = perf_counter() - began
        self.seconds += spent
        self._next = perf_counter() + spent / SHARE


def _flat(client: Client) -> dict[str, torch.Tensor]:
    return named("own", client.own) | named("private", client.private)


def _fits(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(found[n].shape == wanted[n].shape for n in wanted)
