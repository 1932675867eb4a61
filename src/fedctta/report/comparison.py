"""A published table beside ours: every number with the paper's and the difference, or why there is none."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from fedctta.report.harm import Harm, describe_harm, find_harm
from fedctta.report.text import number, roomy
from fedctta.report.titles import is_bound, is_idle
from fedctta.results.digests import Digest

Grid = tuple[list[str], list[list[str]]]
DIFFERENCE, PAPER = "difference", "paper"
# What a table counts, as its figures and its page call it; forgetting is in points, seconds are those of a client.
MEASURES = {
    "accuracy": "accuracy (%)",
    "mean_class_accuracy": "mean class accuracy (%)",
    "macro_f1": "macro F1 (%)",
    "miou": "mIoU (%)",
    "dice": "Dice (%)",
    "worst_client": "accuracy of the worst client (%)",
    "major": "accuracy of the major class (%)",
    "minor": "accuracy of the minor class (%)",
    "forgetting": "forgetting (points)",
    "seconds": "seconds per client",
    "gain": "gain (points)",
}
LESS_IS_BETTER = ("forgetting", "seconds")


@dataclass(frozen=True)
class Entry:
    """One number of a table in percent: ours, one per seed; the paper's (nan: not printed); or why ours is missing."""

    ours: tuple[float, ...] = ()
    paper: float = nan
    paper_spread: float = nan
    reason: str = ""
    derived: str = ""  # the sum by which the paper's number follows from printed ones
    seeds: tuple[int, ...] = ()  # of ours, one by one; where they are not told, those of two entries are the same

    def gains_over(self, base: Entry) -> tuple[float, ...]:
        """Return ours less another entry's, for every seed that both have."""
        if not self.seeds or not base.seeds:
            same = len(self.ours) == len(base.ours)
            return tuple(a - b for a, b in zip(self.ours, base.ours, strict=True)) if same else ()
        theirs = dict(zip(base.seeds, base.ours, strict=True))
        return tuple(a - theirs[k] for k, a in zip(self.seeds, self.ours, strict=True) if k in theirs)

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return float(np.mean(self.ours)) if self.ours else nan

    @property
    def spread(self) -> float:
        """Standard deviation over seeds, with n - 1 below the line; nan for a single seed."""
        return float(np.std(self.ours, ddof=1)) if len(self.ours) > 1 else nan

    @property
    def difference(self) -> float:
        """Ours less the paper's, in percentage points."""
        return self.mean - self.paper


@dataclass(frozen=True)
class Line:
    """One method: its entries in the order of the columns."""

    label: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Comparison:
    """One panel as it turned out. `across` says what its columns are: settings, domains or positions in time.

    `runs` holds the digests of the runs of every (row, setting); `figure` names the picture that suits it.
    """

    name: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    across: str = "mean"
    figure: str = "dots"
    axis: str = ""
    text: str = ""
    runs: Mapping[tuple[str, str], tuple[Digest, ...]] = field(default_factory=dict)
    metric: str = "accuracy"
    baseline: str = ""  # the row that gains are counted from
    group: str = ""  # of tables that are summed up together

    @property
    def base(self) -> Line | None:
        """The row that gains are counted from, if there is one."""
        return next((line for line in self.lines if line.label == self.baseline), None)

    def best(self, column: int) -> frozenset[str]:
        """Return the labels with the best mean of a column; the upper bound does not compete."""
        found = {
            line.label: round(line.entries[column].mean, 2)
            for line in self.lines
            if isfinite(line.entries[column].mean) and not self._is_bound(line.label)
        }
        top = (min if self.metric in LESS_IS_BETTER else max)(found.values(), default=nan)
        return frozenset(label for label, mean in found.items() if mean == top and len(found) > 1)

    def _is_bound(self, label: str) -> bool:
        found = (record.settings for (row, _), records in self.runs.items() if row == label for record in records)
        return is_bound(label, found)

    def warnings(self) -> list[str]:
        """Say which methods end below doing nothing; of domains and positions, in the mean over them.

        A table with gains says so itself.
        """
        if self.metric in LESS_IS_BETTER or self.base is not None:
            return []
        idle = {row for (row, _), records in self.runs.items() for run in records if is_idle(run.settings)}
        found: list[Harm] = []
        for k, column in enumerate(self.columns):
            if self.across == "mean" or k == len(self.columns) - 1:
                found += find_harm(column, {line.label: line.entries[k].mean for line in self.lines}, idle)
        measure = MEASURES[self.metric].removesuffix(" (%)")
        return list(describe_harm(found, "" if self.metric == "accuracy" else measure))

    def missing(self) -> dict[str, list[str]]:
        """Return the reasons why cells are missing, each with the rows, together where they lack the same columns."""
        found: dict[str, dict[tuple[str, ...], list[str]]] = {}
        for line in self.lines:
            lost: dict[str, list[str]] = {}
            for column, entry in zip(self.columns, line.entries, strict=True):
                if entry.reason:
                    lost.setdefault(entry.reason, []).append(column)
            for reason, columns in lost.items():
                some = () if self.across != "mean" or len(columns) == len(self.columns) else tuple(columns)
                found.setdefault(reason, {}).setdefault(some, []).append(line.label)
        return {reason: [_name_cells(rows, some) for some, rows in places.items()] for reason, places in found.items()}

    def reasons(self) -> list[str]:
        """Say for every reason which cells are missing."""
        return [f"{'; '.join(cells)}: {reason}" for reason, cells in self.missing().items()]

    def filled(self) -> str:
        """Return the text with every {row | column} replaced by our mean there, {sh} and {th} by the streams' own."""
        entries = {(line.label, c): e for line in self.lines for c, e in zip(self.columns, line.entries, strict=True)}

        def ours(found: re.Match[str]) -> str:
            row, _, column = (" ".join(part.split()) for part in found[1].partition("|"))  # lines may break within
            if row in ("sh", "th") and not column:
                values = sorted({float(run.settings[row]) for runs in self.runs.values() for run in runs})
                return " or ".join(dict.fromkeys(f"{value:.3g}" for value in values)) or "-"
            entry = entries.get((row, column or self.columns[-1]))
            return found[0] if entry is None else number(entry.mean)

        return re.sub(r"\{([^{}]+)\}", ours, self.text)

    def turned(self) -> Comparison:
        """Return the table with rows and columns exchanged."""
        columns = zip(*(line.entries for line in self.lines), strict=True)
        lines = tuple(Line(name, entries) for name, entries in zip(self.columns, columns, strict=True))
        return Comparison(self.name, tuple(line.label for line in self.lines), lines)

    def grid(self, bold: str = "{}") -> Grid:
        """Lay the strings out: settings two columns each, domains and positions three lines a method."""
        return self._wide(bold) if self.across == "mean" else self._long(bold)

    def markdown(self) -> str:
        """Return the table in Markdown, best values in bold."""
        head, body = self.grid("**{}**")
        rule = [":--" if k == 0 else "--:" for k in range(len(head))]
        lines = ([cell.replace("|", "\\|") for cell in line] for line in (head, rule, *body))
        return "".join("| " + " | ".join(line) + " |\n" for line in lines)

    def _wide(self, bold: str) -> Grid:
        head, body = ["method"], [[line.label] for line in self.lines]
        for k, column in enumerate(self.columns):
            best = self.best(k)
            paper = any(isfinite(line.entries[k].paper) for line in self.lines)
            head += [column, "paper (diff)"] if paper else [column]
            for cells, line in zip(body, self.lines, strict=True):
                entry = line.entries[k]
                text = ours(entry)
                cells.append(bold.format(text) if line.label in best else text)
                if paper:
                    cells.append(theirs(entry))
        return head, body

    def _long(self, bold: str) -> Grid:
        body = []
        for line in self.lines:
            texts = [number(entry.mean) if entry.ours else reason_word(entry) for entry in line.entries]
            if self.base is not None and line is not self.base:
                pairs = zip(line.entries, self.base.entries, strict=True)
                found = (entry.gains_over(base) for entry, base in pairs)
                gains = [f" ({signed(float(np.mean(gain)))})" if gain else "" for gain in found]
                texts = [text + gain for text, gain in zip(texts, gains, strict=True)]
            for k, column_best in enumerate(self.best(k) for k in range(len(self.columns))):
                texts[k] = bold.format(texts[k]) if line.label in column_best else texts[k]
            body.append([line.label, *texts])
            if any(isfinite(entry.paper) for entry in line.entries):
                body.append([PAPER, *map(printed, line.entries)])
                if any(entry.ours for entry in line.entries):
                    body.append([DIFFERENCE, *(signed(entry.difference) for entry in line.entries)])
        return ["method", *self.columns], body


def _name_cells(rows: Sequence[str], columns: Sequence[str]) -> str:
    return "; ".join(rows) + (f" (in {', '.join(columns)})" if columns else "")


def ours(entry: Entry) -> str:
    """Write our mean and spread, or a word for why there is none."""
    if not entry.ours:
        return reason_word(entry)
    return number(entry.mean) + (f" ± {number(entry.spread)}" if isfinite(entry.spread) else "")


def theirs(entry: Entry) -> str:
    """Write the paper's number and the difference."""
    if not isfinite(entry.paper):
        return "-"
    return printed(entry) + (f" ({signed(entry.difference)})" if entry.ours else "")


def printed(entry: Entry) -> str:
    """Write the paper's number, or the sum it follows from."""
    return f"{entry.derived} = {number(entry.paper)}" if entry.derived else number(entry.paper)


def reason_word(entry: Entry) -> str:
    """Write why a cell is empty in one word; the whole reason stands below the table."""
    return (UNAVAILABLE if entry.reason.startswith(UNAVAILABLE) else "failed") if entry.reason else "-"


UNAVAILABLE = "not available"


def signed(value: float) -> str:
    """Write a difference with its sign."""
    return f"{value:+.2f}" if isfinite(value) else "-"


def csv_of(comparisons: Iterable[Comparison]) -> str:
    """Return one line a number, full precision, empty where it is not known; `seconds` are the mean of a run."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [
            "panel",
            "method",
            "column",
            "mean",
            "spread",
            "seeds",
            "paper",
            "paper_spread",
            "seconds",
            "reason",
            "derived",
        ]
    )
    for table in comparisons:
        for line in table.lines:
            for column, entry in zip(table.columns, line.entries, strict=True):
                known = [v if isfinite(v) else "" for v in (entry.mean, entry.spread, entry.paper, entry.paper_spread)]
                row = [table.name, line.label, column, *known[:2], len(entry.ours), *known[2:]]
                writer.writerow([*row, _seconds(table, line.label, column), entry.reason, entry.derived])
    return out.getvalue()


def _seconds(table: Comparison, label: str, column: str) -> float | str:
    """Return the mean seconds of a cell's runs; domains and positions are parts of one run."""
    runs = [
        run.seconds
        for (row, setting), records in table.runs.items()
        for run in records
        if row == label and (setting == column or table.across != "mean")
    ]
    return round(float(np.mean(runs)), 2) if runs else ""


def print_comparison(tables: Sequence[Comparison], console: Console) -> None:
    """Print the tables to a terminal, with the reasons of missing cells; domains and positions go down."""
    console = roomy(console)
    for table in tables:
        head, body = table.grid("[bold]{}[/bold]") if table.across == "mean" else table.turned().grid()
        title = Text(table.name, "table.title")
        view = RichTable(title=title, title_justify="left", header_style="dim", box=None, pad_edge=False)
        for k, name in enumerate(head):
            view.add_column(Text(name), justify="left" if k == 0 else "right")
        for line in body:
            view.add_row(*map(Text.from_markup, line))
        console.print(view)
        for sentence in table.reasons():
            console.print(sentence, style="dim", markup=False, soft_wrap=True)
        for sentence in table.warnings():
            console.print(sentence, style="yellow", markup=False, highlight=False)
        console.print()
