"""What a device has predicted, one row per image, never half a row and never an image twice.

JSONL is appended to, one write per batch. A batch for which there is no room is taken back, so that no line is torn;
an incomplete last line, which only a power cut can leave, is removed at the next start. Parquet files cannot be
appended to, so rows are collected in a JSONL file beside them, which becomes a part file, written whole, when it is
long or old enough. In both cases the rows on disk are the record of what need not be predicted again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Protocol

from fedctta.errors import UserError
from fedctta.files import append, lock, make_writable, open_private, whole
from fedctta.fleet.device.sources import Done

Row = dict[str, Any]
COLUMNS = ("id", "class", "name", "confidence", "batch", "time", "label")
PART_ROWS, PART_SECONDS = 10_000, 60.0


class Predictions(Protocol):
    """Where rows go."""

    def append(self, rows: list[Row]) -> None:
        """Write the rows of one batch, at once."""

    def done(self) -> Done:
        """Return what was written before."""

    def __enter__(self) -> Predictions: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_predictions(path: Path) -> Predictions:
    """Open a file of rows (.jsonl), or a folder of part files (.parquet)."""
    return Parquet(path) if _is_folder(path) else Jsonl(path)


@contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Refuse a place that another device writes to: each would take the other's rows for its own."""
    place = path / "_lock" if _is_folder(path) else path.resolve().with_name(f".{path.resolve().name}.lock")
    new, refused = not path.exists(), False
    make_writable(place.parent)
    with lock(place, f"another device writes to {path}: stop it, or choose another --out"):
        try:
            yield
        except UserError:
            refused = True
            raise
        finally:  # once the lock is gone, what lies here may be another device's
            if new and refused and path.is_file() and not path.stat().st_size:
                path.unlink()
            place.unlink(missing_ok=True)
            if new and refused and path.is_dir():
                with suppress(OSError):  # there is something in it
                    path.rmdir()


def _is_folder(path: Path) -> bool:
    if path.suffix not in (".jsonl", ".parquet"):
        raise UserError(f"--out {path} must end in .jsonl or .parquet")
    return path.suffix == ".parquet"


class Jsonl:
    """Rows as lines of JSON."""

    def __init__(self, path: Path) -> None:
        make_writable(path.parent)
        self.path = path
        self.rows = 0
        cut_torn_line(path)
        self._file = open_private(path, "a")

    def append(self, rows: list[Row]) -> None:
        """Write the rows of one batch, at once."""
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8", "surrogateescape")
        append(self._file, text, self.path)
        self.rows += len(rows)

    def read(self) -> Iterator[Row]:
        """Yield the rows written so far."""
        with self.path.open(encoding="utf-8", errors="surrogateescape") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield dict(json.loads(line))
                except (ValueError, TypeError) as error:
                    raise UserError(
                        f"{self.path}, line {number}, is no prediction: give --out another name, or mend the file"
                    ) from error

    def done(self) -> Done:
        """Return what was written before."""
        ids, batches = [], 0
        for row in self.read():
            ids.append(str(row.get("id")))
            batches = max(batches, int(row.get("batch", -1)) + 1)
        return Done(frozenset(ids), len(ids), batches)

    def __enter__(self) -> Jsonl:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._file.close()


def cut_torn_line(path: Path) -> None:
    """Cut off what follows the last line end."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        end = size = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - 4096)
            file.seek(start)
            line_end = file.read(end - start).rfind(b"\n")
            if line_end >= 0:
                end = start + line_end + 1
                break
            end = start
        if end < size:
            file.truncate(end)


class Parquet:
    """Rows as part files in a folder. `part-N` and the open `_rows-N.jsonl` begin with row N."""

    def __init__(self, folder: Path) -> None:
        make_writable(folder)
        self.folder = folder
        parts = sorted(folder.glob("part-*.parquet"))
        for left in folder.glob("_rows-*.jsonl"):
            if self._part(int(left.stem.removeprefix("_rows-"))).exists():  # killed just before it was removed
                left.unlink()
        self._before = _read_parts(parts)
        self._open(self._before.images)

    def _part(self, first: int) -> Path:
        return self.folder / f"part-{first:012d}.parquet"

    def _open(self, first: int) -> None:
        self._first, self._since = first, monotonic()
        self._rows = Jsonl(self.folder / f"_rows-{first:012d}.jsonl")  # readers of folders pass over such names

    def append(self, rows: list[Row]) -> None:
        """Write the rows of one batch, at once."""
        self._rows.append(rows)
        if self._rows.rows >= PART_ROWS or monotonic() - self._since > PART_SECONDS:
            self._close_part()
            self._open(self._first + self._count)

    def _close_part(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = list(self._rows.read())
        self._count = len(rows)
        self._rows._file.close()
        if rows:
            types = [pa.string(), pa.int64(), pa.string(), pa.float64(), pa.int64(), pa.float64(), pa.int64()]
            schema = pa.schema(zip(COLUMNS, types, strict=True))
            with whole(self._part(self._first), private=True) as part:
                pq.write_table(pa.Table.from_pylist(rows, schema), part)
        self._rows.path.unlink()

    def done(self) -> Done:
        """Return what was written before."""
        lately = self._rows.done()
        ids = frozenset(self._before.ids) | frozenset(lately.ids)
        return Done(ids, self._before.images + lately.images, max(self._before.batches, lately.batches))

    def __enter__(self) -> Parquet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Turn the open rows into a last part."""
        self._close_part()


def _read_parts(parts: list[Path]) -> Done:
    if not parts:
        return Done()
    import pyarrow.parquet as pq

    tables = [pq.read_table(part, columns=["id", "batch"]) for part in parts]
    ids = [name for table in tables for name in table["id"].to_pylist()]
    return Done(frozenset(ids), len(ids), 1 + max(max(table["batch"].to_pylist()) for table in tables))
