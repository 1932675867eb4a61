"""The results table: methods down, settings across, the paper's number beside ours."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from fedctta.errors import UserError
from fedctta.report.columns import Column, arrange, methods
from fedctta.report.harm import MARK, Harm, describe_harm, find_harm
from fedctta.report.text import human_bytes, number, roomy
from fedctta.report.titles import is_bound, is_idle_row
from fedctta.results.records import Record

Published = Mapping[str, Mapping[str, Any]]
Grid = tuple[list[str], list[list[str]]]


@dataclass(frozen=True)
class Cell:
    """All seeds of one method in one setting: accuracies in percent, costs of one run (nan: not known)."""

    mean: float
    std: float  # over seeds, with n - 1 below the line; nan for a single seed
    seeds: int
    published: float
    bytes_up: float
    bytes_down: float
    seconds: float
    peak_memory_mb: float
    same_domain_weight: float
    mean_class_accuracy: float
    macro_f1: float
    worst_client: float
    major: float  # mean over clients of the accuracy in each one's most frequent class
    minor: float
    calibration_error: float
    mean_entropy: float  # in nats
    absent_classes: float
    miou: float = nan  # of dense runs
    forgetting: float = nan  # in points, where it was measured

    @property
    def dense(self) -> bool:
        """Whether every pixel was predicted."""
        return isfinite(self.miou)

    @property
    def score(self) -> float:
        """What methods are judged by: mIoU where every pixel was predicted, else accuracy."""
        return self.miou if self.dense else self.mean

    @property
    def difference(self) -> float:
        """Ours less the paper's, in percentage points."""
        return self.mean - self.published


@dataclass(frozen=True)
class Row:
    """One method, with a cell for every column (None: not run there)."""

    label: str
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Table:
    """What `results_table` returns."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def best(self, column: int) -> frozenset[str]:
        """Return the labels with the highest mean of a column; the upper bound does not compete."""
        found = [(row.label, row.cells[column]) for row in self.rows if not is_bound(row.label)]
        means = {label: round(cell.mean, 2) for label, cell in found if cell and isfinite(cell.mean)}
        top = max(means.values(), default=nan)
        return frozenset(label for label, mean in means.items() if mean == top and len(means) > 1)

    def has_published(self, column: int) -> bool:
        """Say whether the paper gives any number of this column."""
        return any(cell and isfinite(cell.published) for cell in (row.cells[column] for row in self.rows))

    @property
    def harm(self) -> tuple[Harm, ...]:
        """Which methods end below doing nothing, where, and by how many points; of dense runs, of mIoU."""
        idle = [row.label for row in self.rows if is_idle_row(row.label)]
        found: list[Harm] = []
        for k, column in enumerate(self.columns):
            cells = {row.label: cell for row in self.rows if (cell := row.cells[k])}
            found += find_harm(column, {label: cell.score for label, cell in cells.items()}, idle)
        return tuple(found)

    def warnings(self) -> list[str]:
        """Return `harm` in words."""
        return list(describe_harm(self.harm, "mIoU" if self.dense else ""))

    @property
    def dense(self) -> bool:
        """Whether any run predicted every pixel."""
        return any(cell and cell.dense for row in self.rows for cell in row.cells)

    @property
    def f1_name(self) -> str:
        """The head of the column of macro F1: of pixels it is the mean Dice coefficient of the classes."""
        return "Dice = macro F1" if self.dense else "macro F1"

    @property
    def unlabelled(self) -> bool:
        """Whether any run had no labels: it is then told by the entropy of its predictions."""
        return any(cell and not isfinite(cell.mean) for row in self.rows for cell in row.cells)

    @property
    def forgets(self) -> bool:
        """Whether forgetting was measured anywhere."""
        return any(cell and isfinite(cell.forgetting) for row in self.rows for cell in row.cells)

    def markdown(self) -> str:
        """Return Markdown, best values in bold; other measures, and where columns are many costs, in tables below."""
        tables = [_markdown(grid) for grid in self._grids(bold="**{}**", clean=_no_bars)]
        return "\n".join([*tables, *(f"{_no_bars(sentence)}\n" for sentence in self.warnings())])

    def csv(self) -> str:
        """Return one line per method and column, full precision, empty where a number is not known."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        unknown = {"miou": self.dense, "forgetting": self.forgets}
        names = [n for n in Cell.__dataclass_fields__ if unknown.get(n, True)]
        writer.writerow(["method", "column", *names])
        for row in self.rows:
            for column, cell in zip(self.columns, row.cells, strict=True):
                if cell:
                    values = [getattr(cell, name) for name in names]
                    writer.writerow([row.label, column, *(v if isfinite(v) else "" for v in values)])
        return out.getvalue()

    def _grids(self, bold: str, clean: Any) -> list[Grid]:
        """Lay the strings out: accuracies, costs, other measures; a single column needs no table for its costs."""
        accuracy, cost, measures = self._accuracy_grid(bold, clean), self._cost_grid(clean), self._measure_grid(clean)
        if len(self.columns) > 1:
            return [accuracy, cost, measures]
        body = [left + right[2:] for left, right in zip(accuracy[1], cost[1], strict=True)]
        alone = ([measures[0][0], *measures[0][2:]], [[line[0], *line[2:]] for line in measures[1]])
        return [(accuracy[0] + cost[0][2:], body), alone]

    def _measure_grid(self, clean: Any) -> Grid:
        head = ["method", "column", *["mIoU"] * self.dense, "class mean", self.f1_name, "worst client", "ECE"]
        head += ["forgetting"] * self.forgets + ["entropy"] * self.unlabelled
        body = [
            [
                clean(row.label),
                clean(column),
                *(number(value) for value in (cell.miou,) if self.dense),
                number(cell.mean_class_accuracy),
                number(cell.macro_f1),
                number(cell.worst_client),
                number(cell.calibration_error),
                *(number(value) for value in (cell.forgetting,) if self.forgets),
                *(number(value) for value in (cell.mean_entropy,) if self.unlabelled),
            ]
            for row in self.rows
            for column, cell in zip(self.columns, row.cells, strict=True)
            if cell
        ]
        return head, body

    def _accuracy_grid(self, bold: str, clean: Any) -> Grid:
        head = ["method"]
        body = [[clean(row.label)] for row in self.rows]
        marked = {(harm.method, harm.column) for harm in self.harm}
        for k, column in enumerate(self.columns):
            best, paper = self.best(k), self.has_published(k)
            head += [clean(column), "paper (diff)"] if paper else [clean(column)]
            for line, row in zip(body, self.rows, strict=True):
                text = _accuracy(row.cells[k]) + (f" {MARK}" if (row.label, column) in marked else "")
                line.append(bold.format(text) if row.label in best else text)
                if paper:
                    line.append(_paper(row.cells[k]))
        return head, body

    def _cost_grid(self, clean: Any) -> Grid:
        head = ["method", "column", "bytes", "seconds", "same-domain"]
        body = [
            [
                clean(row.label),
                clean(column),
                human_bytes(cell.bytes_up + cell.bytes_down),
                number(cell.seconds, 1),
                number(cell.same_domain_weight, 3),
            ]
            for row in self.rows
            for column, cell in zip(self.columns, row.cells, strict=True)
            if cell
        ]
        return head, body


def results_table(records: Sequence[Record], published: Published | None = None) -> Table:
    """Build the table of a set of runs.

    `published` holds the paper's percentages as {method label: {column or stream: value}}. A stream's name
    alone is enough where only one column has that stream.
    """
    columns = arrange(records)
    given = {label.casefold(): numbers for label, numbers in (published or {}).items()}
    streams = [column.stream for column in columns]

    def cell(label: str, column: Column) -> Cell | None:
        if label not in column.methods:
            return None
        numbers = given.get(label.casefold(), {})
        known = numbers.get(column.name)
        if known is None and streams.count(column.stream) == 1:
            known = numbers.get(column.stream)
        return _cell(column.methods[label], _percent(label, known))

    rows = (Row(label, tuple(cell(label, column) for column in columns)) for label in methods(columns))
    return Table(tuple(column.name for column in columns), tuple(rows))


def print_table(table: Table, console: Console | None = None) -> None:
    """Print the table to a terminal."""
    console = roomy(console or Console())
    for head, body in table._grids(bold="[bold]{}[/bold]", clean=escape):
        view = RichTable(header_style="dim", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for k, name in enumerate(head):
            words = k == 0 or name == "column"
            view.add_column(Text.from_markup(name), justify="left" if words else "right", no_wrap=not words)
        for line in body:
            view.add_row(*map(Text.from_markup, line))
        console.print(view)
    for sentence in table.warnings():
        console.print(sentence, style="yellow", markup=False, highlight=False)


def _cell(runs: Sequence[Record], published: float) -> Cell:
    percents = np.array([100 * run.accuracy for run in runs])

    def mean(name: str) -> float:
        return float(np.mean([float(getattr(run, name)) for run in runs]))

    return Cell(
        mean=float(percents.mean()),
        std=float(percents.std(ddof=1)) if len(runs) > 1 else nan,
        seeds=len(runs),
        published=published,
        bytes_up=mean("bytes_up"),
        bytes_down=mean("bytes_down"),
        seconds=mean("seconds"),
        peak_memory_mb=mean("peak_memory_mb"),
        same_domain_weight=mean("same_domain_weight"),
        mean_class_accuracy=100 * mean("mean_class_accuracy"),
        macro_f1=100 * mean("macro_f1"),
        worst_client=100 * mean("worst_client"),
        major=100 * float(np.mean([_known_mean(run.major_by_client) for run in runs])),
        minor=100 * float(np.mean([_known_mean(run.minor_by_client) for run in runs])),
        calibration_error=100 * mean("calibration_error"),
        mean_entropy=mean("mean_entropy"),
        absent_classes=mean("absent_classes"),
        miou=100 * mean("miou") if all(run.dense for run in runs) else nan,
        forgetting=100 * mean("forgetting"),
    )


def _known_mean(values: Sequence[float]) -> float:
    """Mean of the values that are known; nan if none is, as in a run without labels."""
    known = [value for value in values if isfinite(value)]
    return float(np.mean(known)) if known else nan


def _accuracy(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    return number(cell.mean) + (f" ± {number(cell.std)}" if isfinite(cell.std) else "")


def _paper(cell: Cell | None) -> str:
    if cell is None or not isfinite(cell.published):
        return "-"
    return f"{number(cell.published)} ({cell.difference:+.2f})"


def _percent(label: str, value: Any) -> float:
    if value is None:
        return nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"published number of {label!r} is {value!r}: write a percentage such as 66.23")
    return float(value)


def _no_bars(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _markdown(grid: Grid) -> str:
    head, body = grid
    rule = [":--" if k == 0 or name == "column" else "--:" for k, name in enumerate(head)]
    return "".join("| " + " | ".join(line) + " |\n" for line in (head, rule, *body))
