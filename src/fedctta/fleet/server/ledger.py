"""What the server writes to disk: its place after every round, its status, W, and every refusal.

checkpoint.safetensors      everything a restarted server needs; written whole after each closed round
status.json                 for people and monitors
collaboration/000012.safetensors    W of round 12 and its device names
refusals.jsonl              one line per refused parcel
audit.jsonl, audit.head     admissions, refusals, revocations and changes of the plan (see `audit`)
"""

from __future__ import annotations

import io
import json
import logging
import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fedctta.errors import UserError
from fedctta.files import append, is_locked, lock, make_writable, open_private, open_tensors, whole, write_tensors
from fedctta.fleet.server import audit
from fedctta.fleet.server.collaboration import Standing
from fedctta.fleet.server.status_table import read_status

log = logging.getLogger("fedctta.fleet")

KEPT = 1000  # matrices
LARGEST = 10 << 20  # bytes of the log of refusals


class FolderTaken(UserError):
    """Another server works in the folder."""


@dataclass
class ServerProgress:
    """Where the server stands after its last closed round, besides the tensors.

    `run` names this fleet's run through all restarts. `round` is the next one to ask for. `owed` maps a
    row to the round of the model that it has not been sent yet.
    """

    run: str = field(default_factory=lambda: secrets.token_hex(8))
    round: int = 0
    names: list[str] = field(default_factory=list)
    owed: dict[int, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    refused_in_a_row: dict[str, int] = field(default_factory=dict)
    free_again: dict[str, int] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    empty_rounds: int = 0


class Ledger:
    """The server's folder."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        make_writable(folder)
        self.folder, self.fingerprint = folder, fingerprint
        self.checkpoint = folder / "checkpoint.safetensors"
        self.refusals = folder / "refusals.jsonl"
        self._lock = _lock(folder)

    def save(self, place: ServerProgress, standing: Standing) -> None:
        """Write the place after a closed round."""
        parts = {"rows": standing.rows, "memory": standing.memory}
        flat = {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}
        header = {"fingerprint": self.fingerprint, "place": asdict(place)}
        write_tensors(self.checkpoint, flat, "ledger", header, sync=True, private=True)

    def load(self, start: Standing) -> tuple[ServerProgress, Standing]:
        """Return the place and standing after the last closed round; before the first, `start`."""
        if not self.checkpoint.exists():
            return ServerProgress(), start
        damaged = f"{self.checkpoint} is damaged: choose another state folder, or delete it"
        with open_tensors(self.checkpoint, "ledger", damaged) as (header, file):
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
            made_by, place = header["fingerprint"], ServerProgress(**header["place"])
        if made_by != self.fingerprint:
            raise UserError(f"{self.checkpoint} belongs to other settings: choose another state folder, or delete it")
        fresh = {f"{part}.{n}": t for part, now in start._asdict().items() for n, t in now.items()}
        if any(n in tensors and tensors[n].shape != t.shape for n, t in fresh.items()):
            raise UserError(f"{self.checkpoint} is of another version: choose another state folder, or delete it")
        place.owed = {int(row): round_ for row, round_ in place.owed.items()}
        device = next(iter(start.rows.values())).device
        rows = {name: tensors[f"rows.{name}"].to(device) for name in start.rows}  # in the order of an unbroken run
        memory = {n.removeprefix("memory."): t.to(device) for n, t in tensors.items() if n.startswith("memory.")}
        ordered = {n: memory.pop(n) for n in start.memory if n in memory} | memory
        return place, Standing(rows, ordered)

    def close(self) -> None:
        """Let another server have the folder."""
        self._lock.close()

    def write_collaboration(self, round_: int, weights: Tensor, names: Sequence[str]) -> None:
        """Keep W of one round, with the devices of its rows; delete the oldest."""
        folder = self.folder / "collaboration"
        path = folder / f"{round_:06}.safetensors"
        write_tensors(path, {"weights": weights.float()}, "names", list(names), private=True)
        (folder / f"{round_ - KEPT:06}.safetensors").unlink(missing_ok=True)

    def write_status(self, status: dict[str, Any]) -> None:
        """Write the status, for people and monitors."""
        _write_status(self.folder, status)

    def admit(self, round_: int, node: int, device: str, facts: dict[str, str]) -> None:
        """Record that a device takes part."""
        audit.record(self.folder, "admitted", round=round_, node=str(node), device=device, **facts)

    def put_out(self, round_: int, node: int, device: str | None) -> None:
        """Record that a device takes part no longer, because its key was revoked or removed."""
        audit.record(self.folder, "revoked", round=round_, node=str(node), device=device)

    def refuse(self, round_: int, node: int, device: str | None, reason: str, quarantined: bool = False) -> None:
        """Add one line to the log of refusals, which is of at most 2 x 10 MB; without room, the server's log has it."""
        line = {"time": time.time(), "round": round_, "node": str(node), "device": device, "reason": reason}
        line |= {"quarantined": True} if quarantined else {}
        try:
            with open_private(self.refusals, "a") as file:
                append(file, json.dumps(line).encode() + b"\n", self.refusals)
                os.fsync(file.fileno())
            if self.refusals.stat().st_size > LARGEST:
                self.refusals.replace(self.refusals.with_name(f"{self.refusals.name}.1"))
            audit.record(self.folder, "refused", **{key: value for key, value in line.items() if key != "time"})
        except (UserError, OSError) as error:
            log.warning("a refusal is not written down: %s", error)


def write_failure(folder: Path, reason: str) -> None:
    """Leave word of what only the user can put right, for the process that would otherwise try again for ever."""
    _write_status(folder, {**read_status(folder), "doing": "failed", "reason": reason})


def _write_status(folder: Path, status: dict[str, Any]) -> None:
    with whole(folder / "status.json", private=True) as part:
        part.write_text(json.dumps({**status, "written": time.time()}, indent=1) + "\n", encoding="utf-8")


def take(folder: Path) -> io.FileIO:
    """Hold the folder for a command, which may have to start its server again and again."""
    make_writable(folder)
    return _lock(folder, "command.lock")


def _lock(folder: Path, name: str = "lock") -> io.FileIO:
    """Hold the folder for as long as this process lives: two servers would undo each other's rounds."""
    return lock(folder / name, FolderTaken(f"another server works in {folder}: end it, or choose another state folder"))


def at_work(folder: Path) -> bool:
    """Whether a server holds the folder now."""
    return is_locked(folder / "lock")


def read_collaboration(folder: Path, round_: int) -> tuple[Tensor, list[str]]:
    """Return W of a round and its device names."""
    path = folder / "collaboration" / f"{round_:06}.safetensors"
    with open_tensors(path, "names", f"{path} is damaged or not there: choose another round") as (names, file):
        return file.get_tensor("weights"), names
