"""Files that are either whole or not there."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from safetensors import SafetensorError

from fedctta.errors import UserError, reason


def require_writable(folder: Path) -> None:
    """Refuse, before any work is done, a folder that cannot be written to. It is not made: the work may still fail."""
    with _cannot_write_to(folder):
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        tempfile.TemporaryFile(dir=there).close()


def make_writable(folder: Path) -> None:
    """Make a folder to write to at once, and refuse it if that cannot be."""
    with _cannot_write_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()


@contextmanager
def _cannot_write_to(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {reason(error)}; choose a folder you may write to") from error


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a temporary name beside `path`; rename it to `path` on success, remove it on any failure.

    A reader therefore never meets a half-written file, whatever interrupts the writer. What cannot be written is the
    user's to mend: a full disk, say.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    except OSError as error:
        raise UserError(f"cannot write {path}: {reason(error)}; choose a folder you may write to") from error
    part = Path(name)
    try:
        os.close(handle)
        yield part
        part.chmod(0o644)
        part.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {reason(error)}; make room, or choose another folder") from error
    except SafetensorError as error:  # what this format raises for a full disk
        raise UserError(f"cannot write {path}: {error}; make room, or choose another folder") from error
    finally:
        part.unlink(missing_ok=True)


def exit_when_terminated() -> None:
    """Let SIGTERM and SIGHUP end the process as an exception does, so that nothing half-written is left behind.

    The exit code is 128 + the signal's number, as a shell counts. A signal that somebody handles or ignores (nohup)
    stays theirs.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second one must not cut the tidying short
        sys.exit(128 + number)

    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):  # Windows has no SIGHUP
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, leave)
