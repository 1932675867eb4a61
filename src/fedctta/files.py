"""Files that are either whole or not there, tensors with a header, and locks."""

from __future__ import annotations

import errno
import io
import json
import os
import secrets
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from fedctta.errors import NoRoom, UserError, reason

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says when there is no room: a full disk, a quota, a limit on a file's size."""

Framework = Literal["pt", "numpy"]


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
        raise cannot_write(f"to {folder}", error, "choose a folder you may write to") from error


@contextmanager
def whole(path: Path, private: bool = False) -> Iterator[Path]:
    """Give a temporary name beside `path`; rename it to `path` on success, remove it on any failure.

    A reader therefore never meets a half-written file, whatever interrupts the writer. What cannot be written is the
    user's to mend: a full disk, say. Who may read it follows from the umask; a `private` file is its user's alone.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600 if private else 0o666)
    except OSError as error:
        raise cannot_write(path, error, "choose a folder you may write to") from error
    try:
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        os.close(handle)
        yield part
        part.chmod(mode)  # who wrote it may have put another file in its place
        part.replace(path)
    except (OSError, SafetensorError) as error:  # the second is what this format raises for a full disk
        raise cannot_write(path, error) from error
    finally:
        part.unlink(missing_ok=True)


def cannot_write(place: Path | str, error: Exception, remedy: str = "make room, or choose another folder") -> UserError:
    """Return the failure to raise for what the system said; that of a full disk is a `NoRoom`."""
    said = reason(error) if isinstance(error, OSError) else str(error)
    full = isinstance(error, OSError) and error.errno in FULL
    full = full or any(f"os error {number})" in said for number in FULL)  # as safetensors words it
    return (NoRoom if full else UserError)(f"cannot write {place}: {said}; {remedy}")


def open_private(path: Path, mode: Literal["a", "w"]) -> io.FileIO:
    """Open a file that only its user may read, without a buffer."""
    file = io.FileIO(path, mode, opener=partial(os.open, mode=0o600))
    os.fchmod(file.fileno(), 0o600)  # it may be there already, with another mode
    return file


def append(file: io.FileIO, content: bytes, path: Path) -> None:
    """Append all of the content, or, if that cannot be, nothing: the system may write a part and then refuse."""
    end = file.seek(0, os.SEEK_END)
    try:
        left = memoryview(content)
        while left:
            left = left[file.write(left) or 0 :]
    except BaseException as error:
        with suppress(OSError):
            file.truncate(end)
        if isinstance(error, OSError):
            raise cannot_write(path, error) from error
        raise


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Do the same for a folder: fill the one that is given, which becomes `path`. One that is there already stays."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
    except OSError as error:
        raise cannot_write(path, error, "choose a folder you may write to") from error
    try:
        yield part
        part.chmod(0o755)  # not for the user alone, as temporary folders are
        try:
            part.replace(path)
        except OSError:
            if not path.is_dir():  # else it was there already, or another process was quicker
                raise
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def write_tensors(
    path: Path,
    tensors: Mapping[str, Any],
    kind: str,
    header: Any,
    *,
    framework: Framework = "pt",
    sync: bool = False,
    private: bool = False,
) -> None:
    """Write tensors as one safetensors file, and `header` in it as JSON under the name `kind`.

    With `sync`, the file is on the disk before it appears under its name.
    """
    save: Callable[..., Any]
    if framework == "pt":
        from safetensors.torch import save_file as save
        from torch import contiguous_format

        # Copies, because the format refuses tensors that share memory and a method may give one under two names.
        held = {n: t.detach().to("cpu", copy=True, memory_format=contiguous_format) for n, t in tensors.items()}
    else:
        from numpy import ascontiguousarray
        from safetensors.numpy import save_file as save

        held = {n: ascontiguousarray(t) for n, t in tensors.items()}
    with whole(path, private) as part:
        save(held, part, metadata={kind: json.dumps(header)})
        if sync:
            with part.open("rb") as file:
                os.fsync(file.fileno())


@contextmanager
def open_tensors(path: Path, kind: str, refusal: str, framework: Framework = "pt") -> Iterator[tuple[Any, Any]]:
    """Open what `write_tensors` wrote: give the header, and the file with its `keys()` and `get_tensor(name)`.

    A file that is damaged or of another kind is refused with the words of `refusal`; so is a header that the reader
    cannot make sense of.
    """
    try:
        with safe_open(path, framework=framework) as file:
            yield json.loads(file.metadata()[kind]), file
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(refusal) from error


def lock(path: Path, refusal: str | UserError) -> io.FileIO:
    """Hold a file until it is closed or this process ends; refuse with the words of `refusal` if another holds it.

    Who holds it may delete it. A file that was deleted before it was held keeps nobody out, so another is taken.
    """
    while True:
        file = open_private(path, "w")
        try:
            _hold(file)
        except OSError as error:
            file.close()
            raise (refusal if isinstance(refusal, UserError) else UserError(refusal)) from error
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()
        path.parent.mkdir(parents=True, exist_ok=True)  # its folder may have been deleted, too


def _hold(file: io.FileIO) -> None:
    """Lock a file at once, or as soon as those have looked who only ask whether it is locked."""
    import fcntl  # Windows has none

    for wait in (0.02, 0.08):
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(wait)
    return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(path: Path) -> bool:
    """Whether a process holds a file that is there (see `lock`); many may look at once."""
    import fcntl  # Windows has none

    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


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
