"""Ends the processes of a supervisor that could not do so itself, because it was killed.

It is told process groups on its standard input, `+GROUP` and `-GROUP` a line. The input ends with the supervisor,
however that comes about; the groups left then are asked to end, and killed if they do not. Started by its path, it
needs nothing but Python.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable

GRACE = 8.0  # seconds to end by itself before it is ended


def signal_group(group: int, number: int) -> bool:
    """Send a signal to all of a process group; return whether anybody was there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


class Guard:
    """A guard at work, seen from the supervisor's side."""

    def __init__(self, grace: float = GRACE) -> None:
        self._grace = grace
        self._groups: set[int] = set()
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            (sys.executable, "-I", "-S", __file__, str(self._grace)),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        for group in self._groups:
            self._tell(f"+{group}\n")

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def tend(self) -> None:
        """Put another one in the place of a guard that was killed."""
        if self._process.poll() is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._start()

    def watch(self, group: int) -> None:
        """End this group should the supervisor die."""
        self._groups.add(group)
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        """Leave a group alone that has ended: its number may come again."""
        self._groups.discard(group)
        self._tell(f"-{group}\n")

    def dismiss(self) -> None:
        """Let the guard end; it ends what it still watches."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # a guard that was killed is no reason to end the fleet
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()


def watched(lines: Iterable[str]) -> set[int]:
    """Return the groups that are left when all lines are read.

    >>> watched(["+12", "+13", "-12"])
    {13}
    """
    groups: set[int] = set()
    for line in lines:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    return groups


def end(groups: Iterable[int], grace: float) -> None:
    """End groups: kindly at first."""
    left = {group for group in groups if signal_group(group, signal.SIGTERM)}
    until = time.monotonic() + grace
    while left and time.monotonic() < until:
        time.sleep(0.1)
        left = {group for group in left if signal_group(group, 0)}
    for group in left:
        signal_group(group, signal.SIGKILL)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end(watched(sys.stdin), float(sys.argv[1]))
