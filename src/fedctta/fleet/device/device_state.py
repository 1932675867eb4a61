"""What a device keeps over restarts: its client, and how far it has come. Written whole, and to the disk.

A state may be some batches older than the predictions, never newer: a device that was killed goes on with the images
that are not predicted yet and the model of the last save. How often to save follows from what saving costs.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedctta.adapters import Adapter
from fedctta.core.clients import Client
from fedctta.core.network import Network
from fedctta.core.tensors import named
from fedctta.errors import UserError
from fedctta.files import make_writable, whole
from fedctta.registry import parameters_of

SHARE = 0.01
"""Of a device's time that saving may take."""


@dataclass(frozen=True)
class StreamPosition:
    """How far a device has come: batches seen, images predicted, and the last download it took (run and round)."""

    batches: int = 0
    images: int = 0
    run: str = ""
    round: int = -1


def identity(network: Network, adapter: Adapter) -> str:
    """A short hash of model, weights, method and its parameters: a state serves no other."""
    digest = hashlib.sha256(json.dumps([adapter.name, parameters_of(adapter)], sort_keys=True, default=str).encode())
    for name, tensor in network.state.items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


class DeviceState:
    """The state folder of one device, which is locked while the device lives."""

    def __init__(self, folder: Path, made_by: str, every: int = 0) -> None:
        make_writable(folder)
        self.path, self._made_by, self._every = folder / "device.safetensors", made_by, every
        self._lock = _locked(folder)
        self._saved, self._next, self._at = 0, 0.0, StreamPosition()
        self.seconds = 0.0

    def load(self, like: Client) -> tuple[Client, StreamPosition]:
        """Return the saved client and place, or `like` at the start if nothing is saved."""
        if not self.path.exists():
            return like, StreamPosition()
        try:
            with safe_open(self.path, framework="pt") as file:
                header: dict[str, Any] = json.loads(file.metadata()["device"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
                made_by, place = header.pop("made_by"), StreamPosition(**header)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{self.path} is damaged: delete it to begin with the source model") from error
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
        copies = {n: t.detach().to("cpu", copy=True).contiguous() for n, t in _flat(client).items()}
        header = {"device": json.dumps({"made_by": self._made_by, **asdict(place)})}
        with whole(self.path) as part:
            save_file(copies, part, metadata=header)
            with part.open("rb") as file:
                os.fsync(file.fileno())
        self._saved, self._at = place.batches, place
        spent = perf_counter() - began
        self.seconds += spent
        self._next = perf_counter() + spent / SHARE


def _flat(client: Client) -> dict[str, torch.Tensor]:
    return named("own", client.own) | named("private", client.private)


def _fits(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(found[n].shape == wanted[n].shape for n in wanted)


def _locked(folder: Path) -> IO[bytes]:
    lock = (folder / "lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise UserError(f"another device runs on {folder}: stop it, or choose another --state") from error
    return lock
