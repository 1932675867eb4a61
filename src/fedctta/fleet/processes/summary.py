"""The results of a try-out: rounds and bytes of the server, images and accuracy of every device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedctta.fleet.device.health_report import HEALTH, read_health
from fedctta.fleet.device.predictions import Jsonl, Row


class Score(NamedTuple):
    """What a device has predicted: batches, images, how many of those carry a label, and how many are right."""

    batches: int = 0
    images: int = 0
    labelled: int = 0
    right: int = 0

    @property
    def accuracy(self) -> str:
        """In percent, as far as labels are known."""
        return f"{100 * self.right / self.labelled:.1f} %" if self.labelled else "not known"


def score(rows: Iterable[Row]) -> Score:
    """Count rows of predictions.

    >>> score([{"batch": 0, "class": 1, "label": 1}, {"batch": 0, "class": 2, "label": 1}]).accuracy
    '50.0 %'
    """
    batches: set[int] = set()
    images = labelled = right = 0
    for row in rows:
        batches.add(row["batch"])
        images += 1
        labelled += row.get("label") is not None
        right += row.get("label") == row["class"]
    return Score(len(batches), images, labelled, right)


def scores(folder: Path) -> Iterator[tuple[str, Score]]:
    """Yield the devices of a try-out's folder and their scores, in the order of their numbers."""
    files = (folder / "devices").glob("*/predictions.jsonl")
    for path in sorted(files, key=lambda path: (len(path.parent.name), path.parent.name)):
        with Jsonl(path) as predictions:
            yield path.parent.name, score(predictions.read())


def summary(folder: Path, status: dict[str, Any]) -> Group:
    """Return the server's line, a table of the devices, and where to find more."""
    found = dict(scores(folder))
    if found:
        found["all"] = Score(*map(sum, zip(*found.values(), strict=True)))
    table = Table(box=None, pad_edge=False)
    table.add_column("device", style="bold")
    for column in ("batches", "images", "accuracy", "estimated", "alarms"):
        table.add_column(column, justify="right")
    for name, told in found.items():
        health = read_health(folder / "devices" / name / HEALTH)
        guess, alarms = health.get("accuracy"), health.get("alarms")
        seems = (f"{100 * guess:.1f} %" if guess is not None else "", str(len(alarms)) if alarms is not None else "")
        table.add_row(Text(name), str(told.batches), str(told.images), told.accuracy, *seems)
    up, down = (int(status.get(key, 0)) / 1024 for key in ("bytes_up", "bytes_down"))
    played = f"{status.get('round', 0)} rounds; {up:.0f} KB up, {down:.0f} KB down; {status.get('refused', 0)} refused"
    more = f"predictions: {folder}/devices/*/predictions.jsonl; collaboration: {folder}/server; logs: {folder}/logs"
    return Group(Text(played), table, Text(more, overflow="ignore", no_wrap=True))
