"""Ends what an earlier command left behind, when it was killed together with its guard.

Every process of a supervisor, and all that these start, carry the supervisor's mark in their environment. Whoever holds
the supervisor's folder ends all who carry its mark and are not its own.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

MARK = "FEDCTTA_SUPERVISOR"


def find(mark: str) -> set[int]:
    """Return the living processes of this user that carry a mark; none where the system does not tell."""
    wanted, found = f"{MARK}={mark}".encode(), set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            marked = wanted in (folder / "environ").read_bytes().split(b"\0")
            if marked and (folder / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.add(int(folder.name))
    return found - {os.getpid()}


def end_leftovers(mark: str, grace: float) -> int:
    """End all processes that carry a mark, kindly at first; return how many there were."""
    left = found = find(mark)
    until = time.monotonic() + grace
    _signal(left, signal.SIGTERM)
    while left and time.monotonic() < until:
        time.sleep(0.1)
        left = find(mark)
    while left:  # and what these have started meanwhile
        _signal(left, signal.SIGKILL)
        time.sleep(0.05)
        left = find(mark)
    return len(found)


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
