"""Run a published table or figure and put our numbers beside the paper's.

Every cell is an experiment that is kept when it is done, under a name made of all that decides its numbers. Tables
therefore share cells, an interrupted reproduction continues where it stopped, and one more seed runs that seed only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from fedctta.errors import UserError, unknown
from fedctta.files import require_writable
from fedctta.machine import choose_device
from fedctta.papers.tables import Panel, Paper, load_paper
from fedctta.report.comparison import UNAVAILABLE, Comparison, Entry, Line
from fedctta.report.reproduction import Story, write_reproduction
from fedctta.results.records import Record
from fedctta.results.summaries import by_client, by_domain, by_position, of_run
from fedctta.runs.build import Builder, data_keys
from fedctta.runs.jobs import side_by_side
from fedctta.runs.progress import RoundBar
from fedctta.runs.settings import Experiment
from fedctta.runs.trial import kept, run_one
from fedctta.streams import ABSENT

Cells = Mapping[tuple[str, str], Experiment]
NOT_RUN = f"{UNAVAILABLE}: not run yet"
Seeds = tuple[tuple[Record, ...], str]  # the seeds that ran, and why others did not
Grid = tuple[tuple[str, ...], tuple[Line, ...]]


@dataclass(frozen=True)
class Missing:
    """Why a cell has no record."""

    reason: str


@dataclass(frozen=True)
class Reproduction:
    """What came out: one comparison a panel."""

    paper: Paper
    tables: tuple[Comparison, ...]
    command: str
    quick: str = ""  # what --quick changed, if it was given

    def write(self, folder: str | Path) -> Path:
        """Write the page, the Markdown file, the numbers and the figures; return the page's path."""
        story = Story(
            name=self.paper.name,
            title=self.paper.title,
            paper=self.paper.paper,
            note=self.paper.note,
            command=self.command,
            quick=self.quick,
        )
        return write_reproduction(story, self.tables, Path(folder))

    @property
    def failed(self) -> list[str]:
        """Return the cells that failed for other reasons than missing data."""
        reasons = [item for table in self.tables for item in table.missing().items()]
        return [cell for reason, cells in reasons if not reason.startswith(UNAVAILABLE) for cell in cells]


def reproduce(
    name: str,
    *,
    seeds: int = 1,
    quick: bool = False,
    panels: Sequence[str] = (),
    shard: str = "1/1",
    gather: bool = False,
    jobs: int = 1,
    out: str | Path = "runs",
    progress: bool = False,
    console: Console | None = None,
    **values: Any,
) -> Reproduction:
    """Run all cells of a published table or figure that are not kept in `out` yet, and compare.

    `values` are experiment keys that win over the preset's (`device="cpu"`, `weights="auto"`). `shard="2/6"` runs
    every sixth cell only, beginning with the second, so that several machines can share the work; a last call
    without it gathers the whole table. With `gather` nothing is run: the table is what is kept so far. `jobs` cells are
    played at once.
    """
    if seeds < 1:
        raise UserError(f"--seeds {seeds} must be at least 1")
    if gather and shard != "1/1":
        raise UserError("--gather shows all cells: leave --shard out")
    paper = load_paper(name)
    chosen = _chosen(paper, panels)
    choose_device(str(values.get("device", "auto")))
    grids = [paper.cells(each, quick, values) for each in chosen]
    every = {experiment.fingerprint: experiment for grid in grids for experiment in grid.values()}
    plan = [replace(experiment, seed=seed) for seed in range(seeds) for experiment in every.values()]
    mine = _shard(plan, shard)
    folder = Path(out)
    require_writable(folder / "runs")
    found: dict[str, Record | Missing] = {}
    builder, lacking = Builder({}), Lacking()
    for panel, grid in zip(chosen, grids, strict=True):
        _check_lengths(panel, grid, builder, lacking)
    if jobs != 1 and not gather:
        there = [experiment for experiment in mine if not lacking.reason(experiment, builder)]
        failed = side_by_side(there, folder, jobs, resume=True)
        found = {fingerprint: Missing(reason) for fingerprint, reason in failed.items()}
    with RoundBar(console or Console(stderr=True), progress) as bar:
        for k, experiment in enumerate(mine):
            label = f"[{k + 1}/{len(mine)}] {experiment.dataset} {experiment.stream}"
            watch = partial(bar.watch, f"{label} {experiment.adapter}+{experiment.aggregator} seed {experiment.seed}")
            if experiment.fingerprint not in found:
                found[experiment.fingerprint] = _attempt(experiment, builder, lacking, folder, watch, gather)
    tables = [_compare(each, grid, seeds, found) for each, grid in zip(chosen, grids, strict=True)]
    command = _command(name, seeds, quick, gather, panels, values)
    if not quick:
        return Reproduction(paper, tuple(tables), command)
    whole = [paper.cells(each, False, values) for each in chosen]
    pairs = [
        (record.settings["slots"], builder.slots(full[cell]))
        for full, table in zip(whole, tables, strict=True)
        for cell, records in table.runs.items()
        for record in records
    ]
    return Reproduction(paper, tuple(tables), command, shortened(pairs))


def shortened(pairs: Iterable[tuple[int, int]]) -> str:
    """Say how many slots domains lasted, and how many they do in the whole protocol.

    >>> shortened([(5, 50), (10, 50)])
    '5 or 10 slots per domain instead of 50'
    >>> shortened([(10, 50), (1, 5)])
    '10 slots per domain instead of 50, 1 slot instead of 5'
    """
    by_whole: dict[int, set[int]] = {}
    for slots, whole in pairs:
        if slots != whole:
            by_whole.setdefault(whole, set()).add(slots)
    words = [
        f"{' or '.join(map(str, sorted(ours)))} slot{'' if ours == {1} else 's'}{{}} instead of {whole}"
        for whole, ours in sorted(by_whole.items(), reverse=True)
    ]
    return (
        ", ".join(part.format("" if k else " per domain") for k, part in enumerate(words))
        or "other settings than slots"
    )


def _chosen(paper: Paper, names: Sequence[str]) -> list[Panel]:
    known = [panel.name for panel in paper.panels]
    for name in names:
        if name not in known:
            raise unknown(f"panel of {paper.name}", name, known)
    return [panel for panel in paper.panels if not names or panel.name in names]


def _shard(plan: Sequence[Experiment], shard: str) -> list[Experiment]:
    part, _, parts = shard.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise UserError(f"--shard {shard} is not a part of a whole: write for example --shard 2/6")
    return list(plan[int(part) - 1 :: int(parts)])


def _check_lengths(panel: Panel, grid: Cells, builder: Builder, lacking: Lacking) -> None:
    """Refuse published numbers that are not as many as the parts they belong to, and the mean."""
    for (row, _), experiment in grid.items() if panel.by != "mean" else ():
        if row not in panel.published or lacking.reason(experiment, builder):
            continue
        try:
            stream = builder.check(experiment, choose_device(experiment.device))
        except UserError:  # told as the cell's reason when its turn comes
            continue
        there = stream.domain != ABSENT
        parts = {
            "domain": len(np.unique(stream.domain[there])),
            "position": len(stream.data.names),
            "client": int(there.any(0).sum()),
        }[panel.by]
        _require_as_many(panel, row, parts + 1)


def _require_as_many(panel: Panel, row: str, columns: int) -> None:
    if len(panel.published[row]) != columns:
        raise UserError(
            f"panel {panel.name}: {row} has {len(panel.published[row])} published numbers for {columns} of ours (by"
            f" {panel.by}, and the mean): leave out the setting that changes ours, or mend the table"
        )


class Lacking:
    """Remembers which data could not be had, so that nobody waits for the same download twice."""

    def __init__(self) -> None:
        self._reasons: dict[tuple[Any, ...], str] = {}

    def reason(self, experiment: Experiment, builder: Builder) -> str:
        """Return why the experiment's data cannot be had, or nothing if they can."""
        data = data_keys(experiment)
        if data not in self._reasons:
            try:
                builder.data(*data)
            except UserError as error:
                self._reasons[data] = f"{UNAVAILABLE}: {error}"
        return self._reasons.get(data, "")


def _attempt(
    experiment: Experiment, builder: Builder, lacking: Lacking, folder: Path, watch: Any, gather: bool
) -> Record | Missing:
    """Return the record of a cell, or why there is none; one that fails must not keep the others from running."""
    if reason := lacking.reason(experiment, builder):
        return Missing(reason)
    try:
        if gather:
            return kept(experiment, builder, folder) or Missing(NOT_RUN)
        return run_one(experiment, builder, folder, resume=True, watch=watch)
    except UserError as error:
        return Missing(str(error))
    except (RuntimeError, ValueError, ArithmeticError) as error:  # out of memory, a method's own mistake
        return Missing(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")


def _compare(panel: Panel, grid: Cells, seeds: int, found: Mapping[str, Record | Missing]) -> Comparison:
    def outcome(cell: tuple[str, str]) -> Seeds:
        seeded = (replace(grid[cell], seed=seed).fingerprint for seed in range(seeds))
        runs = [found.get(key, Missing(f"{UNAVAILABLE}: left to another shard")) for key in seeded]
        records = tuple(run for run in runs if isinstance(run, Record))
        reasons = [run.reason for run in runs if isinstance(run, Missing)]
        return records, next((reason for reason in reasons if not records or reason != NOT_RUN), "")

    cells = {cell: outcome(cell) for cell in grid}
    rows = list(dict.fromkeys(row for row, _ in cells))
    columns, lines = (_by_setting if panel.by == "mean" else _by_part)(panel, cells, rows)
    runs = {cell: records for cell, (records, _) in cells.items()}
    return Comparison(panel.name, columns, lines, panel.by, panel.figure, panel.axis, panel.text, runs, panel.metric)


def _by_setting(panel: Panel, cells: Mapping[tuple[str, str], Seeds], rows: Sequence[str]) -> Grid:
    """Return the settings that were run, and every row's mean accuracy in them."""
    settings = [column for column in panel.columns if any(column == c for _, c in cells)]
    place = {column: k for k, column in enumerate(panel.columns)}

    def entry(row: str, column: str) -> Entry:
        runs, reason = cells.get((row, column), ((), ""))
        printed = panel.published[row][place[column]] if row in panel.published else (nan, nan)
        derived = panel.derived.get(row, {}).get(place[column], "")
        return Entry(tuple(of_run(run, panel.metric) for run in runs), *printed, reason, derived)

    return tuple(settings), tuple(Line(row, tuple(entry(row, column) for column in settings)) for row in rows)


def _by_part(panel: Panel, cells: Mapping[tuple[str, str], Seeds], rows: Sequence[str]) -> Grid:
    """Return the domains or positions of a panel with one setting, then the mean, and every row's accuracy there."""
    found = {row: (_parts(panel, runs), reason) for (row, _), (runs, reason) in cells.items()}
    printed = max((len(panel.published.get(row, ())) for row in rows), default=0)
    numbered = (*(str(k + 1) for k in range(printed - 1)), "mean")  # where nothing was run
    names = next((tuple(parts) for parts, _ in found.values() if parts), numbered)

    def line(row: str) -> Line:
        parts, reason = found[row]
        if row in panel.published:
            _require_as_many(panel, row, len(names))
        numbers = panel.published.get(row, ((nan, nan),) * len(names))
        sums = panel.derived.get(row, {})
        each = enumerate(zip(names, numbers, strict=True))
        return Line(row, tuple(Entry(parts.get(n, ()), *p, reason, sums.get(k, "")) for k, (n, p) in each))

    return names, tuple(line(row) for row in rows)


def _parts(panel: Panel, runs: Sequence[Record]) -> dict[str, tuple[float, ...]]:
    """Return every seed's numbers by domain, position or client, and the mean last; nothing without runs."""
    if not runs:
        return {}
    if panel.by == "position":
        each = [by_position(run) for run in runs]
    else:
        each = [(by_domain if panel.by == "domain" else by_client)(run, panel.metric) for run in runs]
    parts = {name: tuple(numbers[name] for numbers in each if name in numbers) for name in each[0]}
    return {**parts, "mean": tuple(of_run(run, panel.metric) for run in runs)}


def _command(name: str, seeds: int, quick: bool, gather: bool, panels: Sequence[str], values: Mapping[str, Any]) -> str:
    words = [f"fedctta reproduce {name}", *(f"{key}={value}" for key, value in values.items() if key != "device")]
    words += [f'--panel "{panel}"' for panel in panels]
    words += [f"--seeds {seeds}"] if seeds > 1 else []
    return " ".join([*words, *(["--quick"] if quick else []), *(["--gather"] if gather else [])])
