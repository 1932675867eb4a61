"""What happens to processes, as one line per event: from the logs they write, and from those who look after them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedctta.fleet.processes.supervisor import Supervisor

MOST = 1 << 20  # bytes read at once: a log may have grown a lot
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Follower:
    """Gives the lines that a file gets from now on, also if it is replaced by a new one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file, self._place = self._look()

    def lines(self) -> Iterator[str]:
        """Yield the whole lines that are new."""
        file, size = self._look()
        if file != self._file or size < self._place:
            self._file, self._place = file, 0
        if size == self._place:
            return
        with self.path.open("rb") as log:
            log.seek(self._place)
            text = log.read(MOST)
        whole = text[: text.rfind(b"\n") + 1] or (text if len(text) == MOST else b"")
        self._place += len(whole)
        yield from (plain(line) for line in whole.decode(errors="replace").splitlines())

    def _look(self) -> tuple[int, int]:
        try:
            found = self.path.stat()
        except OSError:
            return 0, 0
        return found.st_ino, found.st_size


def plain(line: str) -> str:
    """Return a line without colours and control characters.

    >>> plain(chr(27) + "[92mINFO" + chr(27) + "[0m: a" + chr(7))
    'INFO: a'
    """
    return "".join(c for c in _COLOUR.sub("", line) if c.isprintable())


class Restarts:
    """Tells when a supervisor has to start a part again."""

    def __init__(self) -> None:
        self._deaths: dict[str, int] = {}

    def look(self, supervisor: Supervisor) -> Iterator[str]:
        """Yield a line for every part that has ended since the last look."""
        for name, tended in supervisor.tended.items():
            if tended.deaths > self._deaths.get(name, 0):
                reason = plain(supervisor.tail(name, 1)) or "no reason is known"
                yield f"{name} ended and is started again ({tended.deaths} so far): {reason}"
            self._deaths[name] = tended.deaths


def read_event(line: str) -> str | None:
    """Return the event that a line of a node's log tells, or None; warnings of Flower pass.

    >>> read_event("2026-11-17 19:14:52,938 INFO round 2: answered the server in 0.10 s")
    'round 2: answered the server in 0.10 s'
    """
    if found := re.match(r"\d{4}-\S+ \S+ (\w+) (.*)", line):
        return found[2] if found[1] == "INFO" else f"{found[1]} {found[2]}"
    return " ".join(line.split()) if re.match(r"(WARN|ERROR|CRITICAL)", line) else None


class NodeReport:
    """What a node's command tells: messages, restarts, and whether the device's socket is there."""

    def __init__(self, log: Path, socket: Path, server: str) -> None:
        self._log, self._socket, self._server = Follower(log), socket, server
        self._restarts = Restarts()
        self._there: bool | None = None

    def look(self, supervisor: Supervisor) -> Iterator[str]:
        """Yield what has happened since the last look."""
        if self._there is None:
            yield f"the node speaks to {self._server}"
        if (there := self._socket.exists()) != self._there:
            self._there = there
            yield f"the device's socket {self._socket} {'is there' if there else 'is not there: start the device'}"
        yield from filter(None, map(read_event, self._log.lines()))
        yield from self._restarts.look(supervisor)
