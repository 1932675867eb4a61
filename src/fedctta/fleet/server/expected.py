"""The names of devices that have keys, which tells a server whom it has never heard."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from fedctta.files import whole

EXPECTED = "expected.json"


def write_expected(state: Path, names: Iterable[str]) -> None:
    """Write the names to the server's state folder."""
    with whole(state / EXPECTED) as part:
        part.write_text(json.dumps(sorted(set(names))) + "\n", encoding="utf-8")


def read_expected(state: Path) -> list[str]:
    """Return the names; none if nothing is known of keys."""
    try:
        found = json.loads((state / EXPECTED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []
