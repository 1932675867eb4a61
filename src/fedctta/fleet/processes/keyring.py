"""Who may take part: the public keys in a folder, Flower's list of nodes, and the names that go with them.

    keys/nodes/device-0.pub   its holder may take part, as device-0 and as nobody else
    keys/revoked/...          its holder may not, and never will again under this key

A server looks at the folder all the time. What is added is let in, what is gone is put out, without a restart; after
one, Flower's list is made to agree first. The server's rounds learn from `bindings` which node has which name.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Protocol

from fedctta.errors import UserError
from fedctta.fleet.server.bindings import write_bindings
from fedctta.fleet.transport.certificates import fingerprint, read_end, read_public_key, remind

log = logging.getLogger("fedctta.fleet")

DAY = 86400.0
Look = tuple[tuple[str, int, int], ...]


class Register(Protocol):
    """What Flower does with nodes."""

    def register(self, key: bytes, name: str) -> int:
        """Let a key in; return its node."""

    def unregister(self, node: int) -> None:
        """Put a node out."""

    def nodes(self) -> dict[bytes, int]:
        """Return the nodes by key."""


class Keyring:
    """The keys that may take part: all of a folder, or the files named; those that are gone are put out."""

    def __init__(self, flower: Register, public: Path | Sequence[Path], certificate: Path | None = None) -> None:
        self._flower, self._public, self._certificate = flower, public, certificate
        self._last: Look | None = None
        self._certified, self._reminded = _stamp(certificate), -inf
        self.names: dict[int, tuple[str, str]] = {}  # by node: its name, and its key's fingerprint

    def agree(self) -> None:
        """Let Flower's list be that of the folder."""
        now = self._look()
        keys = read_keys(self._paths())
        there = self._flower.nodes()
        for key in there.keys() - keys.keys():
            self._flower.unregister(there[key])
            log.warning("the key %s is no longer let in", fingerprint(key))
        names = {}
        for key, name in keys.items():
            node = there[key] if key in there else self._flower.register(key, name)
            names[node] = (name, fingerprint(key))
        self.names, self._last = names, now

    def tend(self, state: Path) -> None:
        """Agree again if the folder has changed; whatever is wrong with it now is told once, and nobody is let in."""
        self._remind()
        if (now := self._look()) == self._last:
            return
        try:
            self.agree()
        except UserError as error:
            if "SuperLink" not in str(error):  # which may be restarting: try again
                self._last = now
            log.warning("the keys are left as they were: %s", error)
        else:
            self.publish(state)

    def publish(self, state: Path) -> None:
        """Tell the server's rounds which node has which name, and others when the certificate ends."""
        certificate = None
        if self._certificate is not None:
            with suppress(UserError):  # `_remind` says what is wrong with it
                certificate = self._certificate, read_end(self._certificate)
        write_bindings(state, self.names, certificate)

    def _remind(self) -> None:
        """Say once a day that the certificate ends soon, or has ended."""
        if self._certificate is None or time.monotonic() - self._reminded < DAY:
            return
        self._reminded = time.monotonic()
        try:
            line = remind(self._certificate)
        except UserError as error:
            line = str(error)
        if line:
            log.warning("%s", line)

    def renewed(self) -> bool:
        """Whether the server's certificate is another than when this was last asked."""
        before, self._certified = self._certified, _stamp(self._certificate)
        return self._certified not in (before, None)

    def _paths(self) -> list[Path]:
        listed = sorted(self._public.glob("*.pub")) if isinstance(self._public, Path) else list(self._public)
        return [path for path in listed if path.exists()]

    def _look(self) -> Look:
        stamps = ((path.name, _stamp(path)) for path in self._paths())
        return tuple((name, *stamp) for name, stamp in stamps if stamp is not None)


def _stamp(path: Path | None) -> tuple[int, int] | None:
    """Return what changes with a file; None if it is not there."""
    try:
        there = path.stat() if path is not None else None
    except OSError:
        return None
    return None if there is None else (there.st_mtime_ns, there.st_ino)


def read_keys(paths: Sequence[Path]) -> dict[bytes, str]:
    """Return names by public key; refuse one key under two names, and keys that were revoked."""
    names: dict[bytes, str] = {}
    for path in paths:
        key = read_public_key(path)
        if key in names:
            raise UserError(f"{names[key]}.pub and {path.name} hold the same key: remove one, each device has its own")
        if list((path.parent.parent / "revoked").glob(f"*-{fingerprint(key)}.pub")):
            raise UserError(f"the key in {path} was revoked: remove it, and make a new one with --add {path.stem}")
        names[key] = path.stem
    return names
