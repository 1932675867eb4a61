"""What the files of a server tell: status, latest W, refusals, its certificate, and whether the audit log is whole.

Nothing here speaks to Flower or to a device, and nothing is written. Files may be torn or missing; what cannot be read
is left out. Neither torch nor the rest of the package is loaded.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from fedctta.errors import UserError
from fedctta.files import is_locked, open_tensors
from fedctta.fleet.expiry import days_left, tell_end
from fedctta.fleet.server.audit import HEAD, LOG, chain_breaks, read_audit
from fedctta.fleet.server.bindings import read_certificate
from fedctta.fleet.server.status_table import read_status

LATEST = 20  # refusals and events that are shown
TAIL = 1 << 16  # bytes of the log of refusals that are looked at
ENDS = ("finished", "failed")
MOST_ROWS = 64  # of W; a larger one is not drawn


def find_state(folder: Path) -> Path:
    """Return the state folder of a server: the folder itself, or the one that `fleet up` has in it."""
    for place in (folder / "server", folder):
        if (place / "status.json").exists():
            return place
    wrong = f"there is no status.json in {folder}" if folder.is_dir() else f"there is no folder {folder}"
    raise UserError(f"{wrong}: give the --out of `fleet up`, or the plan's state folder")


class Observer:
    """Looks at one state folder; the audit log is checked again only after it has changed."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self._seen: tuple[Any, ...] = ()
        self._audit: dict[str, Any] = {}

    def observe(self) -> dict[str, Any]:
        """Return everything at once, as plain values."""
        status = read_status(self.state)
        if not is_locked(self.state / "lock"):  # nobody is at work: what was written last is no longer so
            status |= {"doing": status["doing"] if status.get("doing") in ENDS else "not running", "why": ""}
            gone = {"online": False, "silence": ""}
            status["nodes"] = [{**node, **gone} for node in status.get("nodes", [])]
        age = max(0.0, time.time() - _number(status.get("written")))
        return {
            **status,
            "age": round(age, 1),
            "collaboration": read_weights(self.state, int(_number(status.get("round"))) - 1),
            "refusals": read_refusals(self.state),
            "audit": self._check_audit(),
            "certificate": describe_certificate(self.state),
        }

    def _check_audit(self) -> dict[str, Any]:
        seen = tuple(_stamp(self.state / name) for name in (LOG, HEAD))
        if seen != self._seen or not self._audit:
            try:
                events, breaks = read_audit(self.state), [found._asdict() for found in chain_breaks(self.state)]
            except UserError as error:
                events, breaks = [], [{"line": 0, "what": str(error)}]
            self._audit = {"lines": len(events), "breaks": breaks[:LATEST], "latest": events[-LATEST:][::-1]}
            self._seen = seen
        return self._audit


def describe_certificate(state: Path) -> dict[str, Any] | None:
    """Return the server's certificate, the days until it ends, and what to do if these are few; None without keys."""
    if (found := read_certificate(state)) is None:
        return None
    return {"file": str(found[0]), "days": days_left(found[1]), "advice": tell_end(*found)}


def read_refusals(state: Path, most: int = LATEST) -> list[dict[str, Any]]:
    """Return the latest refusals, the last one first; lines that are torn are left out."""
    try:
        with (state / "refusals.jsonl").open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL))
            lines = file.read().splitlines()
    except OSError:
        return []
    found = []
    for line in lines[::-1]:
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(told, dict) and {"round", "node", "reason"} <= told.keys():
            found.append(told)
        if len(found) == most:
            break
    return found


def read_weights(state: Path, round_: int) -> dict[str, Any] | None:
    """Return W of a round with its device names; None if there is none, or if it is too large to be shown."""
    path = state / "collaboration" / f"{round_:06}.safetensors"
    try:
        with open_tensors(path, "names", "", "numpy") as (names, file):
            weights = file.get_tensor("weights")
    except UserError:
        return None
    rows = [[round(float(w), 4) for w in row] for row in weights] if len(names) <= MOST_ROWS else None
    return {"round": round_, "names": list(names), "weights": rows}


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
