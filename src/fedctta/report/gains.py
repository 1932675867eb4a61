"""What methods gain over a baseline: tables by domain summed up, and the sums of several data sets ranked.

A cell is a method in one column (a domain) of one table; its gain is its number less the baseline's of the same seed.
All cells count alike, and a method that lacks some has no mean: other cells may be easier. The upper bound competes
with nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite, nan
from typing import NamedTuple

import numpy as np

from fedctta.report.comparison import MEASURES, Comparison, Entry, Line, signed
from fedctta.report.titles import is_bound

MEAN, WORST, BEHIND = "mean gain", "worst cell", "behind the best, at most"


class Cell(NamedTuple):
    """The gains of one method in one place, one per seed."""

    table: str
    place: str
    gains: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return float(np.mean(self.gains))


def add_summaries(tables: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Return the tables, with a summary of gains before the first of every group that has a baseline."""
    shown: list[Comparison] = []
    for table in tables:
        group = [each for each in tables if group_of(each) == group_of(table)]
        if table.base is not None and table is group[0] and any(find_cells(group).values()):
            shown.append(sum_up(group))
        shown.append(table)
    return tuple(shown)


def group_of(table: Comparison) -> str:
    """Return by which name tables are summed up together: their panel's, or their own."""
    return table.group or table.name


def find_cells(tables: Sequence[Comparison]) -> dict[str, list[Cell]]:
    """Return the cells of every method, in all tables of a group, each with the seeds that the baseline has, too."""
    found: dict[str, list[Cell]] = {}
    for table in tables:
        base = table.base
        where = table.name.removeprefix(f"{table.group}, ")
        for line in table.lines if base is not None else ():
            if base is None or line is base:
                continue
            cells = found.setdefault(line.label, [])
            # the last column of a table by domain is the whole run
            for column, entry, zero in list(zip(table.columns, line.entries, base.entries, strict=True))[:-1]:
                if gains := entry.gains_over(zero):
                    cells.append(Cell(where, f"{column}, {where}" if table.group else column, gains))
    return found


def sum_up(tables: Sequence[Comparison]) -> Comparison:
    """Return one line per method: the mean gain over all cells, the worst cell, and the mean gain in every table."""
    found = find_cells(tables)
    most = max(map(len, found.values()), default=0)
    names = list(dict.fromkeys(cell.table for cells in found.values() for cell in cells)) if len(tables) > 1 else []
    lines = [
        Line(
            label if len(cells) in (0, most) else f"{label} ({len(cells)} of {most} cells)",
            (
                Entry(mean_by_seed(cells) if len(cells) == most else ()),
                Entry((min(cell.mean for cell in cells),) if cells and len(cells) == most else ()),
                *(Entry(mean_by_seed([cell for cell in cells if cell.table == name])) for name in names),
            ),
        )
        for label, cells in found.items()
    ]
    first = tables[0]
    runs = {(f"{t.name}: {row}", column): r for t in tables for (row, column), r in t.runs.items()}
    return Comparison(
        f"{group_of(first)}: gains",
        (MEAN, WORST, *names),
        tuple(lines),
        figure="none",
        text=" ".join(describe(found, first)),
        runs=runs,
        metric="gain",
    )


def mean_by_seed(cells: Sequence[Cell]) -> tuple[float, ...]:
    """Return the mean over cells for every seed; one number where not all cells have all seeds; nothing of nothing."""
    if not cells:
        return ()
    if len({len(cell.gains) for cell in cells}) > 1:
        return (float(np.mean([cell.mean for cell in cells])),)
    return tuple(float(mean) for mean in np.mean([cell.gains for cell in cells], 0))


def describe(found: Mapping[str, Sequence[Cell]], table: Comparison) -> Iterator[str]:
    """Say what is counted, where every method is worst, and where nobody gains."""
    count = max(map(len, found.values()), default=0)
    measure = MEASURES[table.metric].removesuffix(" (%)")
    yield (
        f"Points of {measure} above {table.baseline}, mean over {count} cells; a cell is a domain in one of the tables"
        " below, the mean over its seeds. Below, gains stand in brackets behind each number in percent."
    )
    whole = {label: cells for label, cells in found.items() if cells and len(cells) == count}
    worst = [(label, min(cells, key=lambda cell: cell.mean)) for label, cells in whole.items()]
    if worst:
        yield f"Worst cells: {'; '.join(f'{label} {signed(cell.mean)} ({cell.place})' for label, cell in worst)}."
    best: dict[str, float] = {}
    for label, cells in found.items():
        for cell in cells if not is_bound(label) else ():
            best[cell.place] = max(best.get(cell.place, -np.inf), cell.mean)
    if nobody := [place for place, gain in best.items() if gain <= 0]:
        yield f"Nobody gains in {len(nobody)} of {len(best)} cells: {'; '.join(nobody)}."
    seeds = {label: [len(cell.gains) for cell in cells] for label, cells in found.items() if cells}
    most = max((max(each) for each in seeds.values()), default=0)
    fewer = [f"{label} {sum(each)} of {most * len(each)}" for label, each in seeds.items() if min(each) < most]
    if fewer:
        yield f"Some methods have not been run with all seeds (cells times seeds): {'; '.join(fewer)}."


def rank(summaries: Mapping[str, Comparison]) -> Comparison:
    """Return one line per method over the summaries of several data sets, best mean first.

    A method that was not run on every set has no mean and stands below the others; its label says how many sets it has.
    How far it is behind the best method of a set does not depend on which sets it has.
    """
    gains: dict[str, dict[str, Entry]] = {}
    worst: dict[str, list[float]] = {}
    for name, table in summaries.items():
        for line in table.lines:
            if line.entries[0].ours:
                gains.setdefault(line.label, {})[name] = line.entries[0]
                worst.setdefault(line.label, []).append(line.entries[1].mean)
    there = [name for name in summaries if any(name in found for found in gains.values())]
    best = {
        name: max(
            (found[name].mean for row, found in gains.items() if name in found and not is_bound(row)), default=nan
        )
        for name in summaries
    }

    def line_of(label: str) -> Line:
        mine = gains[label]
        whole = len(mine) == len(there)
        mean = Entry((float(np.mean([entry.mean for entry in mine.values()])),)) if whole else Entry()
        behind = min(min(0.0, entry.mean - best[name]) for name, entry in mine.items())
        title = label if whole else f"{label} ({len(mine)} of {len(there)} sets)"
        entries = mean, Entry((min(worst[label]),)), Entry((behind,))
        return Line(title, (*entries, *(mine.get(name, Entry()) for name in there)))

    def place(line: Line) -> tuple[bool, float]:
        mean, _, behind, *_ = line.entries
        return not mean.ours, -(mean if mean.ours else behind).mean

    lines = sorted(map(line_of, gains), key=place)
    runs = {(f"{name}: {row}", column): r for name, t in summaries.items() for (row, column), r in t.runs.items()}
    told = " ".join(describe_ranking(gains, best))
    columns = (MEAN, WORST, BEHIND, *there)
    return Comparison("All servers, all sets", columns, tuple(lines), text=told, runs=runs, metric="gain")


def describe_ranking(gains: Mapping[str, Mapping[str, Entry]], best: Mapping[str, float]) -> Iterator[str]:
    """Say per data set who is best."""
    yield (
        "Points above No-Adapt: the mean over sets, the worst cell of all, how far a method is behind the best one of a"
        " set where that is most, and the mean over the cells of every set."
    )
    for name, top in best.items():
        who = [row for row, found in gains.items() if name in found and not is_bound(row) and found[name].mean == top]
        if not isfinite(top):
            yield f"{name}: not run yet."
        elif top <= 0:
            yield f"{name}: nobody gains; nearest is {' and '.join(who)} ({signed(top)})."
        else:
            yield f"{name}: {' and '.join(who)} gains most ({signed(top)})."
