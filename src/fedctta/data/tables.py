"""Which files belong to which domain and class: read from folders, or from a CSV or Parquet file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedctta.data.decode import is_image
from fedctta.data.domains import UNLABELLED, numbered
from fedctta.errors import UserError

TABLES = (".csv", ".parquet")
COLUMNS = ("path", "domain", "label")


class Item(NamedTuple):
    """One image file; its class is a name, a number, or not known."""

    path: Path
    domain: str
    label: str | int | None


def list_items(place: Path) -> list[Item]:
    """List the image files of a folder or a table, in an order that does not depend on the machine."""
    if place.suffix.lower() in TABLES:
        return read_table(place)
    if not place.is_dir():
        raise UserError(f"there is no folder {place}: check the path, or name a .csv or .parquet file")
    return list_folder(place)


def list_folder(folder: Path) -> list[Item]:
    """List DOMAIN/CLASS/files, and DOMAIN/files, which have no label; a domain has either."""
    items: list[Item] = []
    for domain in _folders(folder):
        bare = [Item(path, domain.name, None) for path in sorted(domain.iterdir()) if is_image(path) and path.is_file()]
        sorted_in = [
            Item(path, domain.name, kind.name)
            for kind in _folders(domain)
            for path in sorted(kind.rglob("*"))
            if is_image(path) and path.is_file()
        ]
        if bare and sorted_in:
            raise UserError(f"{domain} holds images both in folders of classes and beside them: move {bare[0].path}")
        items += bare + sorted_in
    if not items:
        raise UserError(f"{folder} holds no images as DOMAIN/CLASS/*.png or DOMAIN/*.png: check the path")
    return items


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def read_table(file: Path) -> list[Item]:
    """Read columns path (relative to the file's folder), domain and, if there is one, label."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    if not file.is_file():
        raise UserError(f"there is no file {file}: check the path")
    try:
        table = pa.csv.read_csv(file) if file.suffix.lower() == ".csv" else pa.parquet.read_table(file)
    except (OSError, pa.ArrowException) as error:
        why = " ".join(str(error).split())
        raise UserError(f"cannot read {file} ({why}): write columns path, domain and label") from None
    for column in COLUMNS[:2]:
        if column not in table.column_names:
            raise UserError(f"{file} has columns {', '.join(table.column_names)}: it needs path and domain, and label")
    labelled = "label" in table.column_names
    columns = [table.column(name).to_pylist() for name in COLUMNS[: 3 if labelled else 2]]
    rows = [(*row, None)[:3] for row in zip(*columns, strict=True)]
    if not rows:
        raise UserError(f"{file} has no rows: write one per image")
    return [_item(file, number, row) for number, row in enumerate(rows, start=1)]


def _item(file: Path, number: int, row: Sequence[Any]) -> Item:
    path, domain, label = row
    if path in (None, "") or domain in (None, ""):
        raise UserError(f"row {number} of {file} has no path or no domain: fill it in")
    if label == "":
        label = None
    if not isinstance(label, str | int | None) or isinstance(label, bool):
        raise UserError(f"row {number} of {file} has the label {label!r}: write a class's name or number")
    return Item(file.parent / str(path), str(domain), label)


def class_names(items: Sequence[Item], listed: Sequence[str] | None, where: Path) -> tuple[tuple[str, ...], list[int]]:
    """Return the classes, and the class of every item (-1: not known).

    Classes are those `listed`, or all names in alphabetical order, or numbers up to the largest.
    """
    known = {item.label for item in items if item.label is not None}
    by_number = bool(known) and all(isinstance(label, int) for label in known)
    if by_number:
        least, most = min(known), max(known)
        names = tuple(listed or numbered(int(most) + 1))
        if int(least) < 0 or int(most) >= len(names):
            raise UserError(f"{where} has the label {least if int(least) < 0 else most}: give 0 to {len(names) - 1}")
        return names, [UNLABELLED if item.label is None else int(item.label) for item in items]
    names = tuple(listed or sorted(map(str, known)))
    places = {name: k for k, name in enumerate(names)}
    for item in items:
        if item.label is not None and str(item.label) not in places:
            raise UserError(f"class {item.label!r} of {item.path} is not in classes.txt: add it there")
    return names, [UNLABELLED if item.label is None else places[str(item.label)] for item in items]
