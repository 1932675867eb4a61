"""How a device fares, without labels: a line for people, a file for monitors, and a note for the server.

The note has no class and nothing of single images: which model answers, the two estimates of accuracy in whole percent,
and how many alarms and skipped batches there were.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedctta.files import whole
from fedctta.fleet.transport.wire import Note
from fedctta.online.adaptation import Adaptation

HEALTH = "health.json"
PREFIX = "health."


def describe_health(adaptation: Adaptation) -> str:
    """Say how the device fares on one line."""
    health = adaptation.health
    said = [f"the {health.answers} model answers"]
    if health.accuracy is not None and health.source_accuracy is not None:
        said.append(f"estimated accuracy {health.accuracy:.0%}, of the source model {health.source_accuracy:.0%}")
    if health.top_share is not None:
        said.append(f"class {health.top_class} is predicted most often ({health.top_share:.0%})")
    said.append(f"{_count(len(health.alarms), 'alarm')}, {_count(health.skipped, 'batch', 'batches')} not adapted to")
    return "; ".join(said)


def write_health(path: Path, adaptation: Adaptation) -> None:
    """Write everything that is known, as JSON."""
    with whole(path, private=True) as part:
        part.write_text(json.dumps(asdict(adaptation.health), indent=1) + "\n", encoding="utf-8")


def read_health(path: Path) -> dict[str, Any]:
    """Return what `write_health` wrote; nothing if that cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def note_health(adaptation: Adaptation) -> Note:
    """Return what the server is told."""
    health = adaptation.health
    note: Note = {"answers": health.answers, "alarms": len(health.alarms), "skipped": health.skipped}
    for name in ("accuracy", "source_accuracy"):
        if (value := getattr(health, name)) is not None:
            note[name] = round(value, 2)
    return {f"{PREFIX}{name}": value for name, value in note.items()}


def health_in(note: Note) -> Note:
    """Return a device's health from its note, as far as it can be true: a device may tell anything."""
    told = {name.removeprefix(PREFIX): value for name, value in note.items() if name.startswith(PREFIX)}
    return {name: value for name, value in told.items() if name in _POSSIBLE and _POSSIBLE[name](value)}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 40


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1


_POSSIBLE = {
    "answers": lambda value: value in ("adapted", "source"),
    "alarms": _is_count,
    "skipped": _is_count,
    "accuracy": _is_share,
    "source_accuracy": _is_share,
}


def _count(number: int, one: str, more: str = "") -> str:
    return f"{number} {one if number == 1 else more or f'{one}s'}"
