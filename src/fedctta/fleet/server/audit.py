"""The audit log: admissions, refusals, revocations and changes of the plan, one line each, chained by hashes.

audit.jsonl     line k holds its number k, the time, the event, its facts, and `before`, the SHA-256 of line k - 1
audit.jsonl.1   the lines before those; beyond 10 MB audit.jsonl takes its place, and the oldest lines are gone
audit.head      the last line once more, with its newline

    before_k = SHA-256(line_{k-1})        before_1 = 64 zeros

A changed, deleted, inserted or swapped line breaks the chain at its place. The head tells lines that were cut off or
added at the end. It is written first: a line of which a dying server wrote nothing, or a piece, is completed with the
next one. Who may write to the folder can forge both files; against that, `chain_breaks` compares with a hash that
somebody noted elsewhere. The first line after a rotation says which line is the oldest that was kept, so that a
beginning which somebody deleted is told from one that is gone for its age.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fedctta.errors import UserError, reason
from fedctta.files import cannot_write, whole

LOG, OLD, HEAD = "audit.jsonl", "audit.jsonl.1", "audit.head"
LARGEST = 10 << 20  # bytes of a log, beyond which the next line begins a new one
ROTATED = "rotated"
START = "0" * 64
LONGEST = 300  # letters of a fact: a device must not fill the disk with its reasons
OWN = ("number", "time", "event", "before")


class Break(NamedTuple):
    """Where the log is not as it was written; lines are counted from 1."""

    line: int
    what: str


def record(folder: Path, event: str, **facts: Any) -> None:
    """Add a line to the log of a server's state folder; several processes may do so at the same time."""
    if taken := sorted(facts.keys() & set(OWN)):
        raise ValueError(f"a fact of an event cannot be called {taken[0]}")
    kept = {key: value[:LONGEST] if isinstance(value, str) else value for key, value in facts.items()}
    with _alone(folder):
        _rotate(folder)
        with _open(folder / LOG) as log:
            _complete(folder, log)
            if not os.fstat(log).st_size and (old := _split(_read(folder / OLD))):
                _add(folder, log, ROTATED, {"oldest": _parse(old[0]).get("number")})
            _add(folder, log, event, kept)


def _rotate(folder: Path) -> None:
    """Put a log that is too long in the place of the last one, after completing a line of which a piece is missing."""
    path = folder / LOG
    if path.exists() and path.stat().st_size > LARGEST:
        with _open(path) as log:
            _complete(folder, log)
            path.replace(folder / OLD)


def _add(folder: Path, log: int, event: str, facts: dict[str, Any]) -> None:
    """Write the line that follows the head."""
    head = _read(folder / HEAD)
    told = _parse(head.removesuffix(b"\n"))
    # without a head nothing was written yet, or it was taken away, which the broken chain then shows
    last, number = (_hash(head.removesuffix(b"\n")), told["number"]) if told else (START, len(_lines(folder)))
    line = {"number": number + 1, "time": round(time.time(), 3), "event": event, **facts, "before": last}
    text = json.dumps(line).encode() + b"\n"
    _write_head(folder / HEAD, text)
    _append(log, text)


def read_audit(folder: Path) -> list[dict[str, Any]]:
    """Return the events, oldest first; lines that cannot be read are left out."""
    return [line for line in map(_parse, _lines(folder)) if line]


def last_hash(folder: Path) -> str:
    """Return the hash of the last line, to be noted elsewhere."""
    lines = _lines(folder)
    return _hash(lines[-1]) if lines else START


def chain_breaks(folder: Path, noted: str = "") -> list[Break]:
    """Return where the log is not as it was written; with `noted`, the hash of some line, also if that line is gone."""
    lines = _lines(folder)
    first = _oldest(lines)
    before, number, found = START, first - 1, []
    for at, line in enumerate(lines, first):
        told = _parse(line)
        if not told:
            found.append(Break(at, "is no line of an audit log: it was changed or is torn"))
        elif told["number"] != number + 1:
            found.append(Break(at, f"says it is line {told['number']}, not {number + 1}: {_moved(told, number)}"))
        elif told["before"] != before and (at > first or first == 1):  # nobody knows what the oldest line followed
            found.append(Break(at, _unchained(at)))
        before, number = _hash(line), told.get("number", number + 1)
    last = first - 1 + len(lines)
    found += _compare_with_head(folder, lines, last)
    if noted and noted != START and noted not in map(_hash, lines):
        age = f", unless that is older than line {first}, the oldest that is kept" if first > 1 else ""
        found.append(Break(last, f"or an earlier one was replaced: no line has the noted hash {noted[:16]}…{age}"))
    return found


def _oldest(lines: list[bytes]) -> int:
    """Return the number that the first line must have: 1, or what the last rotation says."""
    told = next((_parse(line) for line in reversed(lines) if f'"{ROTATED}"'.encode() in line), {})
    kept = told.get("oldest") if told.get("event") == ROTATED else None
    return kept if isinstance(kept, int) else 1


def _moved(told: dict[str, Any], number: int) -> str:
    return "lines before it were deleted" if told["number"] > number + 1 else "it was inserted, repeated or swapped"


def _unchained(at: int) -> str:
    if at == 1:
        return "does not begin a chain: lines before it were deleted"
    return f"does not carry the hash of line {at - 1}: one of the two was changed, or it was added without the chain"


def _compare_with_head(folder: Path, lines: list[bytes], last: int) -> Iterator[Break]:
    head = _read(folder / HEAD)
    told = _parse(head.removesuffix(b"\n"))
    if not lines and not head:
        return
    if not told:
        yield Break(last, f"cannot be compared with {HEAD}, which is missing or damaged")
    elif lines and told["number"] < last:
        yield Break(told["number"] + 1, f"and what follows is not known to {HEAD}: added without the chain")
    elif told["number"] > last:
        ending = "the end was cut off, or the server died in it"
        yield Break(last + 1, f"is missing: {HEAD} is line {told['number']}; {ending}")
    elif lines[-1] + b"\n" != head:
        yield Break(last, f"is not the last line in {HEAD}: it was changed")


def _complete(folder: Path, log: int) -> None:
    """Write what is missing of the head's line, unless a server died before it wrote to a new log.

    The head is believed: if lines before it were cut off or others added after it, the repeated line shows that.
    """
    head, size = _read(folder / HEAD), os.fstat(log).st_size
    if not _parse(head.removesuffix(b"\n")) or (not size and _read(folder / OLD).endswith(head)):
        return
    end = os.pread(log, len(head), max(0, size - len(head)))
    if end != head:
        piece = end.rpartition(b"\n")[2]
        _append(log, head[len(piece) :] if head.startswith(piece) else b"\n" + head)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process writes to the log."""
    import fcntl  # Windows has none

    with _open(folder / ".audit.lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _open(path: Path) -> Iterator[int]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError as error:
        raise cannot_write(path, error, "choose a folder you may write to") from error
    try:
        yield file
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        os.close(file)


def _append(log: int, text: bytes) -> None:
    """Write all of it, and wait until it is on the disk."""
    while text:
        text = text[os.write(log, text) :]
    os.fsync(log)


def _write_head(path: Path, text: bytes) -> None:
    with whole(path, private=True) as part, part.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _lines(folder: Path) -> list[bytes]:
    return _split(_read(folder / OLD)) + _split(_read(folder / LOG))


def _split(content: bytes) -> list[bytes]:
    lines = content.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}; ask as the user the server runs as") from error


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _parse(line: bytes) -> dict[str, Any]:
    """Return a line's content; nothing if it is not a line of ours."""
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    fits = isinstance(told, dict) and isinstance(told.get("number"), int) and isinstance(told.get("before"), str)
    return told if fits else {}
