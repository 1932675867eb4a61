"""Run a published table or figure and put our numbers beside the paper's.

Every cell is an experiment that is kept when it is done, under a name made of all that decides its numbers. Tables
therefore share cells, an interrupted reproduction continues where it stopped, and one more seed runs that seed only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fedctta.errors import UserError
from fedctta.files import require_writable
from fedctta.papers.claims import list_claims
from fedctta.papers.forecast import Forecast, forecast
from fedctta.papers.gathering import compare, describe_shortening
from fedctta.papers.missing import NOT_RUN, Lacking, Missing
from fedctta.papers.planning import Plan, check_lengths, make_plan
from fedctta.papers.playing import Found, find_cells, find_current, find_packed, play_cells
from fedctta.papers.shortfall import find_missing
from fedctta.papers.sources import find_trained, find_trainings, train_sources
from fedctta.papers.tables import Paper, load_paper
from fedctta.report.comparison import UNAVAILABLE, Comparison
from fedctta.report.gains import add_summaries, group_of, rank, sum_up
from fedctta.report.reproduction import Story, write_reproduction
from fedctta.runs.cache import Cache
from fedctta.runs.progress import RoundBar


@dataclass(frozen=True)
class Reproduction:
    """What came out: one comparison a panel."""

    paper: Paper
    tables: tuple[Comparison, ...]
    command: str
    quick: str = ""  # what --quick changed, if it was given
    parts: tuple[Reproduction, ...] = ()  # of a ranking: the presets whose methods are ranked
    missing: tuple[str, ...] = ()  # what the tables lack of the preset

    @property
    def story(self) -> Story:
        """What is told beside the tables."""
        return Story(
            name=self.paper.name,
            title=self.paper.title,
            paper=self.paper.paper,
            note=self.paper.note,
            command=self.command,
            quick=self.quick,
            missing=self.missing,
            claims=list_claims(self.paper.claims),
            many=len(self.paper.panels) > 1,
        )

    def write(self, folder: str | Path) -> Path:
        """Write the page, the Markdown file, the numbers and the figures; return the page's path.

        The pages of parts go to folders beside this one.
        """
        for part in self.parts:
            part.write(Path(folder).parent / part.paper.name)
        return write_reproduction(self.story, self.tables, Path(folder))

    @property
    def failed(self) -> list[str]:
        """Return the cells, by row, that failed for other reasons than missing data."""
        tables = [*self.tables, *(table for part in self.parts for table in part.tables)]
        reasons = [item for table in tables for item in table.missing().items()]
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
    pool: str | Path = "runs",
    progress: bool = False,
    console: Console | None = None,
    **values: Any,
) -> Reproduction:
    """Run all cells of a published table or figure that are not kept in `pool` yet, and compare.

    `values` are experiment keys that win over the preset's (`device="cpu"`, `weights="auto"`). `shard="2/6"` runs
    every sixth cell only, beginning with the second, so that several machines can share the work; a last call
    without it gathers the whole table. With `gather` nothing is run: the table is what is kept so far. Runs are kept in
    `pool/runs` and, if it is there, in `pool/records.parquet`. `jobs` cells are played at once. Source models that the
    preset trains and that are not there are trained first. A preset that names other presets plays these and ranks
    their methods.
    """
    if seeds < 1:
        raise UserError(f"--seeds {seeds} must be at least 1")
    if gather and shard != "1/1":
        raise UserError("--gather shows all cells: leave --shard out")
    console = console or Console(stderr=True)
    command = write_command(name, seeds, quick, gather, panels, values)
    if (paper := load_paper(name)).presets:
        if panels:
            raise UserError(f"{name} ranks whole presets: leave --panel out, or name one of {', '.join(paper.presets)}")
        options: dict[str, Any] = {"seeds": seeds, "quick": quick, "shard": shard, "gather": gather, "jobs": jobs}
        options |= {"pool": pool, "progress": progress, "console": console, **values}
        parts = tuple(reproduce(each, **options) for each in paper.presets)
        quickened = "; ".join(dict.fromkeys(part.quick for part in parts if part.quick))
        return Reproduction(paper, rank_presets(parts), command, quickened, parts)
    plan = make_plan(name, seeds, quick, panels, shard, values)
    folder, cache, lacking = Path(pool), Cache(), Lacking()
    packed = find_packed(plan.mine, folder) if gather else find_current(plan.mine, folder, cache)
    left = [each for each in plan.mine if each.fingerprint not in packed]
    if not gather:
        require_writable(folder / "runs")
        trainings = find_trainings(plan.paper, left)
        train_sources(trainings, lambda line: console.print(line, soft_wrap=True), jobs, stop=True)
    for panel, grid in zip(plan.panels, plan.grids, strict=True):
        check_lengths(panel, grid, cache, lacking)
    found: Found
    if gather:
        played = find_cells(find_trained(plan.paper, plan.mine), cache, lacking, folder)
        there = {fingerprint: run for fingerprint, run in played.items() if not isinstance(run, Missing)}
        untrained = {each.fingerprint: Missing(NOT_RUN) for each in plan.mine}
        found = {**untrained, **played, **packed, **there}
    else:
        bar = RoundBar(console, progress)
        found = {**packed, **play_cells(left, cache, lacking, folder, jobs, bar)}
    return gather_tables(plan, found, command, quick, values)


def gather_tables(plan: Plan, found: Found, command: str, quick: bool, values: Mapping[str, Any]) -> Reproduction:
    """Return the tables of a plan from what was found, and what they lack."""
    each = zip(plan.panels, plan.grids, plan.seeds, strict=True)
    tables = [compare(panel, grid, seeds, found) for panel, grid, seeds in each]
    quickened = _say_quick(plan, tables, values) if quick else ""
    missing = find_missing(plan.paper, plan.panels, tables)
    return Reproduction(plan.paper, add_summaries(tables), command, quickened, missing=missing)


def rank_presets(parts: Sequence[Reproduction]) -> tuple[Comparison, ...]:
    """Return the ranking of all methods over the first group of tables of every preset, and these groups' summaries.

    A group whose name continues that of the first ("Batch 10, by gradients") has more methods for the same places.
    """
    summaries = {}
    for part in parts:
        tables = [table for table in part.tables if table.base is not None]
        name = group_of(tables[0]) if tables else ""
        first = [table for table in tables if group_of(table) == name or group_of(table).startswith(f"{name}, ")]
        if first:
            summaries[part.paper.title] = replace(sum_up(first), name=part.paper.title)
    return rank(summaries), *(
        table for table in summaries.values() if any(line.entries[0].ours for line in table.lines)
    )


def foresee(
    name: str,
    *,
    seeds: int = 1,
    quick: bool = False,
    panels: Sequence[str] = (),
    shard: str = "1/1",
    pool: str | Path = "runs",
    **values: Any,
) -> list[Forecast]:
    """Run nothing: return what `reproduce` would do, for every preset that has a part in it."""
    names = load_paper(name).presets or (name,)
    plans = [make_plan(each, seeds, quick, panels, shard, values) for each in names]
    return [forecast(plan, Path(pool)) for plan in plans]


def _say_quick(plan: Plan, tables: Sequence[Comparison], values: Mapping[str, Any]) -> str:
    """Say what --quick changed in the cells that ran."""
    whole = [plan.paper.cells(each, False, values) for each in plan.panels]
    return describe_shortening(
        (record.settings["slots"], full[cell].slots)
        for full, table in zip(whole, tables, strict=True)
        for cell, records in table.runs.items()
        for record in records
    )


def write_command(
    name: str, seeds: int, quick: bool, gather: bool, panels: Sequence[str], values: Mapping[str, Any]
) -> str:
    """Return the command that makes the same table."""
    words = [f"fedctta reproduce {name}", *(f"{key}={value}" for key, value in values.items() if key != "device")]
    words += [f'--panel "{panel}"' for panel in panels]
    words += [f"--seeds {seeds}"] if seeds > 1 else []
    return " ".join([*words, *(["--quick"] if quick else []), *(["--gather"] if gather else [])])
