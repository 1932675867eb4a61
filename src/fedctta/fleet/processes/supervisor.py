"""Starts processes, each with its own log and process group; restarts those that die; ends all that it started.

If the supervisor itself is killed, a guard ends them (see `guard`); if both are killed, the next supervisor of the
folder does (see `leftovers`). Logs have at most 2 x 10 MB each.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

from fedctta.errors import UserError
from fedctta.files import lock, make_writable, open_private
from fedctta.fleet.processes.guard import GRACE, Guard, signal_group
from fedctta.fleet.processes.leftovers import MARK, end_leftovers
from fedctta.fleet.processes.process_specs import ProcessSpec

SHORTEST, LONGEST = 1.0, 30.0  # seconds between a death and the next start; doubled from one death to the next
STEADY = 60.0  # a part that has lived for so long starts again with the shortest pause
MENDABLE = 2  # how our own commands end on what only the user can put right: trying again does not help


ROTATE, LARGEST = 10.0, 10 << 20  # seconds between two looks at the logs; bytes of one

log = logging.getLogger("fedctta.fleet")


def rotate(path: Path) -> None:
    """Begin a log anew that has become too long, and keep the last one. Who writes to it keeps it open, and goes on."""
    with contextlib.suppress(OSError):
        if path.stat().st_size > LARGEST:
            with contextlib.suppress(OSError):  # a full disk: then the old one is lost, and there is room again
                kept = path.with_name(f"{path.name}.1")
                open_private(kept, "w").close()
                shutil.copyfile(path, kept)
            os.truncate(path, 0)


@dataclass
class Tended:
    """A part, its process, and its state."""

    part: ProcessSpec
    process: subprocess.Popen[bytes]
    started: float
    deaths: int = 0
    pause: float = SHORTEST
    again: float | None = None  # when it is started again, if it is dead
    done: bool = False

    @property
    def state(self) -> str:
        """One word."""
        return "done" if self.done else "running" if self.again is None else "restarting"


class Supervisor:
    """Keeps parts running for the length of a `with` block. Ctrl-C and SIGTERM end the block."""

    def __init__(self, logs: Path, name: str = "fleet") -> None:
        make_writable(logs)
        self._logs, self._name = logs, name
        self._mark = str(logs.resolve() / name)
        self._rotated = time.monotonic()
        self.tended: dict[str, Tended] = {}

    def __enter__(self) -> Supervisor:
        refusal = f"another command works in {self._logs.parent}: end it, or choose another --out"
        self._lock = lock(self._logs / f"{self._name}.lock", refusal)
        if count := end_leftovers(self._mark, GRACE):
            log.warning("ended %d processes that an earlier command had left behind", count)

        def stop(number: int, frame: FrameType | None) -> None:
            raise KeyboardInterrupt

        self._guard = Guard(GRACE)
        self._before = None
        with contextlib.suppress(ValueError):  # not the main thread: signals go elsewhere
            self._before = signal.signal(signal.SIGTERM, stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
            end_leftovers(self._mark, GRACE)  # what parts have started in sessions of their own
        finally:
            self._guard.dismiss()
            self._lock.close()
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def start(self, part: ProcessSpec) -> None:
        """Start a part and look after it from now on."""
        self.tended[part.name] = Tended(part, self._spawn(part), time.monotonic())

    def tend(self) -> None:
        """Notice deaths, and start again what is due."""
        self._guard.tend()
        now = time.monotonic()
        if now - self._rotated > ROTATE:
            self._rotated = now
            for part in self.tended:
                rotate(self._logs / f"{part}.log")
        for tended in self.tended.values():
            if tended.done:
                continue
            if tended.again is None and (code := tended.process.poll()) is not None:
                self._bury(tended)
                if code == 0 and tended.part.finite:
                    tended.done = True
                    continue
                if code == MENDABLE and tended.part.finite:
                    raise UserError(f"{tended.part.name} ended: {self.tail(tended.part.name, 1)}")
                tended.pause = SHORTEST if now - tended.started > STEADY else tended.pause
                tended.deaths, tended.again = tended.deaths + 1, now + tended.pause
                tended.pause = min(LONGEST, 2 * tended.pause)
            elif tended.again is not None and now >= tended.again:
                tended.process, tended.started, tended.again = self._spawn(tended.part), now, None

    @property
    def all_done(self) -> bool:
        """Whether there were parts that end by themselves, and all have."""
        finite = [tended.done for tended in self.tended.values() if tended.part.finite]
        return bool(finite) and all(finite)

    def stop(self) -> None:
        """End everything: devices first, the SuperLink last; what does not end by itself is killed."""
        living = [tended for tended in self.tended.values() if tended.state == "running"]
        for tended in reversed(living):
            signal_group(tended.process.pid, signal.SIGTERM)
        until = time.monotonic() + GRACE
        for tended in living:
            with contextlib.suppress(subprocess.TimeoutExpired):
                tended.process.wait(max(0.0, until - time.monotonic()))
            self._bury(tended)

    def _bury(self, tended: Tended) -> None:
        """Make sure that a part has ended, with all processes it started."""
        signal_group(tended.process.pid, signal.SIGKILL)
        tended.process.wait()
        self._guard.forget(tended.process.pid)

    def memory(self, name: str) -> int:
        """Return the resident bytes of a part and of what it started; 0 where the system does not tell."""
        group, total = self.tended[name].process.pid, 0
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == group:
                    total += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
        return total

    def tail(self, name: str, lines: int = 3) -> str:
        """Return the end of a part's log on one line."""
        with contextlib.suppress(OSError):
            text = (self._logs / f"{name}.log").read_text(errors="replace").splitlines()
            return " | ".join(line.strip() for line in text[-lines:])
        return ""

    def _spawn(self, part: ProcessSpec) -> subprocess.Popen[bytes]:
        with open_private(self._logs / f"{part.name}.log", "a") as file:
            process = subprocess.Popen(
                part.command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **part.environment, MARK: self._mark},
                start_new_session=True,
            )
        self._guard.watch(process.pid)
        return process
