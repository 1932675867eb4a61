"""Gather the records of a panel's cells into a table: our numbers beside the published ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isnan, nan

from fedctta.papers.missing import NOT_RUN, OTHER_SHARD, Missing
from fedctta.papers.planning import Cells, require_as_many
from fedctta.papers.playing import Found
from fedctta.papers.tables import Panel
from fedctta.report.comparison import Comparison, Entry, Line
from fedctta.results.digests import Digest

Seeds = tuple[tuple[Digest, ...], str]  # the seeds that ran, and why others did not
Grid = tuple[tuple[str, ...], tuple[Line, ...]]


def compare(panel: Panel, grid: Cells, seeds: int, found: Found) -> Comparison:
    """Return the panel's table of all seeds that ran, with the reasons of cells that have none."""

    def gather(cell: tuple[str, str]) -> Seeds:
        seeded = (replace(grid[cell], seed=seed).fingerprint for seed in range(seeds))
        runs = [found.get(key, Missing(OTHER_SHARD)) for key in seeded]
        records = tuple(run for run in runs if isinstance(run, Digest))
        reasons = [run.reason for run in runs if isinstance(run, Missing)]
        return records, next((reason for reason in reasons if not records or reason != NOT_RUN), "")

    cells = {cell: gather(cell) for cell in grid}
    rows = list(dict.fromkeys(row for row, _ in cells))
    columns, lines = (lay_out_settings if panel.by == "mean" else lay_out_parts)(panel, cells, rows)
    runs = {cell: records for cell, (records, _) in cells.items()}
    return Comparison(
        panel.name,
        columns,
        lines,
        panel.by,
        panel.figure,
        panel.axis,
        panel.text,
        runs,
        panel.metric,
        panel.baseline,
        panel.group,
    )


def lay_out_settings(panel: Panel, cells: Mapping[tuple[str, str], Seeds], rows: Sequence[str]) -> Grid:
    """Return the settings that were run, and every row's mean accuracy in them."""
    settings = [column for column in panel.columns if any(column == c for _, c in cells)]
    place = {column: k for k, column in enumerate(panel.columns)}

    def entry(row: str, column: str) -> Entry:
        runs, reason = cells.get((row, column), ((), ""))
        printed = panel.published[row][place[column]] if row in panel.published else (nan, nan)
        derived = panel.derived.get(row, {}).get(place[column], "")
        return Entry(tuple(run.of_run(panel.metric) for run in runs), *printed, reason, derived)

    return tuple(settings), tuple(Line(row, tuple(entry(row, column) for column in settings)) for row in rows)


def lay_out_parts(panel: Panel, cells: Mapping[tuple[str, str], Seeds], rows: Sequence[str]) -> Grid:
    """Return the domains or positions of a panel with one setting, then the mean, and every row's accuracy there."""
    found = {row: (split_runs(panel, runs), reason) for (row, _), (runs, reason) in cells.items()}
    printed = max((len(panel.published.get(row, ())) for row in rows), default=0)
    numbered = (*(str(k + 1) for k in range(printed - 1)), "mean")  # where nothing was run
    names = next((tuple(parts) for parts, _ in found.values() if parts), numbered)

    def entry(ours: Sequence[tuple[int, float]], theirs: tuple[float, float], reason: str, derived: str) -> Entry:
        return Entry(tuple(number for _, number in ours), *theirs, reason, derived, tuple(seed for seed, _ in ours))

    def line(row: str) -> Line:
        parts, reason = found[row]
        if row in panel.published:
            require_as_many(panel, row, len(names))
        numbers = panel.published.get(row, ((nan, nan),) * len(names))
        sums = panel.derived.get(row, {})
        each = enumerate(zip(names, numbers, strict=True))
        return Line(row, tuple(entry(parts.get(n, ()), p, reason, sums.get(k, "")) for k, (n, p) in each))

    return names, tuple(line(row) for row in rows)


def split_runs(panel: Panel, runs: Sequence[Digest]) -> dict[str, list[tuple[int, float]]]:
    """Return seeds and their numbers by domain, position, client or class, and the mean last; nothing without runs."""
    if not runs:
        return {}
    seeds = [int(run.settings["seed"]) for run in runs]
    each = [run.split(panel.by, panel.metric) for run in runs]
    parts = {
        name: [(k, found[name]) for k, found in zip(seeds, each, strict=True) if not isnan(found.get(name, nan))]
        for name in each[0]
    }
    return {**parts, "mean": [(k, run.of_run(panel.metric)) for k, run in zip(seeds, runs, strict=True)]}


def describe_shortening(pairs: Iterable[tuple[int, int | None]]) -> str:
    """Say how many slots domains lasted, and how many they do in the whole protocol (None: as images suffice for).

    >>> describe_shortening([(5, 50), (10, 50)])
    '5 or 10 slots per domain instead of 50'
    >>> describe_shortening([(10, 50), (1, 5)])
    '10 slots per domain instead of 50, 1 slot instead of 5'
    """
    by_whole: dict[int, set[int]] = {}
    for slots, whole in pairs:
        if slots != whole:
            by_whole.setdefault(whole or 0, set()).add(slots)
    words = [
        f"{' or '.join(map(str, sorted(ours)))} slot{'' if ours == {1} else 's'}{{}} instead of {whole or 'all images'}"
        for whole, ours in sorted(by_whole.items(), reverse=True)
    ]
    return (
        ", ".join(part.format("" if k else " per domain") for k, part in enumerate(words))
        or "other settings than slots"
    )
