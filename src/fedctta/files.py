"""Files that are either whole or not there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedctta.errors import UserError


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
        raise UserError(f"cannot write to {folder}: {error.strerror}; choose a folder you may write to") from error


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a temporary name beside `path`; rename it to `path` on success, remove it on any failure.

    A reader therefore never meets a half-written file, whatever interrupts the writer.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose a folder you may write to") from error
    os.close(handle)
    part = Path(name)
    try:
        yield part
        part.chmod(0o644)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
