"""Tables, figures and one self-contained page from the records of finished runs.

What draws is loaded when something is drawn: matplotlib and pyarrow take a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedctta.report.columns import arrange
from fedctta.report.health import describe_health
from fedctta.report.table import Cell, Published, Row, Table, print_table, results_table
from fedctta.report.titles import TITLE
from fedctta.results.records import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Cell", "Row", "Table", "arrange", "describe_health", "plot", "print_table", "results_table", "write_report"]


def plot(records: Sequence[Record]) -> Figure:
    """Draw the overview (see `figures.plot`)."""
    from fedctta.report import figures

    return figures.plot(records)


def write_report(
    records: Sequence[Record], folder: Path, published: Published | None = None, title: str = TITLE
) -> Path:
    """Write the whole report into a folder and return the path of its page (see `folder.write_report`)."""
    from fedctta.report import folder as files

    return files.write_report(records, folder, published, title)
