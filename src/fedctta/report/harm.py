"""Methods that end below doing nothing, said in words wherever a table is shown."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import TYPE_CHECKING

from fedctta.report.titles import is_idle_row

if TYPE_CHECKING:
    from fedctta.report.table import Table

LEAST = 0.05  # points: less is not seen with one digit


def describe_harm(table: Table) -> Iterator[str]:
    """Yield a sentence per method and column whose accuracy is below that of the model as it is."""
    for k, column in enumerate(table.columns):
        cells = {row.label: cell for row in table.rows if (cell := row.cells[k]) and isfinite(cell.mean)}
        idle = [cell.mean for label, cell in cells.items() if is_idle_row(label)]
        for label, cell in cells.items():
            if idle and not is_idle_row(label) and max(idle) - cell.mean >= LEAST:
                yield f"{label} is {max(idle) - cell.mean:.1f} points below doing nothing on {column}."
