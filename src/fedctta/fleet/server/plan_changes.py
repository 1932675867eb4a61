"""What a server is told to do, kept beside its state, so that a change of the plan is seen and recorded.

plan.json       the plan of the last start, with all defaults
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedctta.files import whole
from fedctta.fleet.server import audit
from fedctta.fleet.server.plan import Plan

log = logging.getLogger("fedctta.fleet")

PLAN = "plan.json"


def note_plan(plan: Plan, round_: int) -> None:
    """Record that a server starts, and what of its plan is new; log both."""
    folder = Path(plan.state)
    before, now = _read(folder / PLAN), _flat(asdict(plan))
    changes = {key: [before.get(key), now.get(key)] for key in sorted(before.keys() | now.keys())}
    changes = {key: [old, new] for key, (old, new) in changes.items() if old != new and key != "state"}
    audit.record(folder, "server started", round=round_)
    log.info("the server starts with round %d of %d", round_, plan.rounds)
    if before and changes:
        audit.record(folder, "plan changed", round=round_, changes=changes)
        log.info("plan changed: %s", "; ".join(f"{key} {old} -> {new}" for key, (old, new) in changes.items()))
    elif not before:
        audit.record(folder, "plan set", round=round_, plan=now)
    with whole(folder / PLAN, private=True) as part:
        part.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one, with dotted keys and values that JSON has."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, bool | int | float | str | None) else str(value)
    return flat


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
