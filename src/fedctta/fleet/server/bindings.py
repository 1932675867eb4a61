"""Which node speaks for which device, as its key says: written where keys are registered, read in the server's rounds.

`nodes.json` in the server's state maps node ids to names and fingerprints of keys. A node that is not in it may not
take part; one that is may say its own name only. Without keys there is no such file, and every name is believed. It
also holds which certificate the server shows, and when that ends, for those who look at the fleet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from fedctta.files import whole

FILE = "nodes.json"


Certificate = tuple[Path, datetime]
"""A certificate's file, and when it ends."""


def write_bindings(
    state: Path, names: Mapping[int, tuple[str, str]] | None, certificate: Certificate | None = None
) -> None:
    """Write who is who; with None, that nobody knows."""
    path = state / FILE
    if names is None:
        path.unlink(missing_ok=True)
        return
    nodes = {str(node): {"device": name, "key": key} for node, (name, key) in names.items()}
    shown = None if certificate is None else {"file": str(certificate[0]), "ends": certificate[1].timestamp()}
    with whole(path, private=True) as part:
        part.write_text(json.dumps({"nodes": nodes, "certificate": shown}, indent=1) + "\n", encoding="utf-8")


def read_certificate(state: Path) -> Certificate | None:
    """Return what `write_bindings` wrote of the certificate; None if nothing is known of it."""
    try:
        shown = json.loads((state / FILE).read_text(encoding="utf-8"))["certificate"]
        return Path(shown["file"]), datetime.fromtimestamp(shown["ends"], UTC)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


class Bindings:
    """The names of nodes, read again whenever the file changes."""

    def __init__(self, state: Path) -> None:
        self._path = state / FILE
        self._seen: tuple[int, int] | None = None
        self._names: dict[int, str] | None = None

    @property
    def names(self) -> dict[int, str] | None:
        """Names by node; None where keys do not say them."""
        try:
            there = self._path.stat()
        except FileNotFoundError:
            self._seen = self._names = None
            return None
        if (now := (there.st_mtime_ns, there.st_ino)) != self._seen:
            nodes = json.loads(self._path.read_text(encoding="utf-8"))["nodes"]
            self._names = {int(node): str(told["device"]) for node, told in nodes.items()}
            self._seen = now
        return self._names

    def allows(self, node: int) -> bool:
        """Whether a node may take part."""
        names = self.names
        return names is None or node in names

    def name_of(self, node: int) -> str | None:
        """The name that goes with a node's key, if any does."""
        return (self.names or {}).get(node)
