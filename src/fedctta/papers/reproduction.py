"""Run a published table or figure and put our numbers beside the paper's.

Every cell is an experiment that is kept when it is done, under a name made of all that decides its numbers. Tables
therefore share cells, an interrupted reproduction continues where it stopped, and one more seed runs that seed only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fedctta.errors import UserError
from fedctta.files import require_writable
from fedctta.papers.gathering import compare, describe_shortening
from fedctta.papers.missing import Lacking
from fedctta.papers.planning import Plan, check_lengths, make_plan
from fedctta.papers.playing import find_cells, play_cells
from fedctta.papers.tables import Paper
from fedctta.report.comparison import UNAVAILABLE, Comparison
from fedctta.report.reproduction import Story, write_reproduction
from fedctta.runs.build import choose_methods, choose_slots
from fedctta.runs.cache import Cache
from fedctta.runs.progress import RoundBar
from fedctta.runs.settings import Experiment


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
    plan = make_plan(name, seeds, quick, panels, shard, values)
    folder, cache, lacking = Path(out), Cache(), Lacking()
    require_writable(folder / "runs")
    for panel, grid in zip(plan.panels, plan.grids, strict=True):
        check_lengths(panel, grid, cache, lacking)
    if gather:
        found = find_cells(plan.mine, cache, lacking, folder)
    else:
        bar = RoundBar(console or Console(stderr=True), progress)
        found = play_cells(plan.mine, cache, lacking, folder, jobs, bar)
    tables = [compare(each, grid, seeds, found) for each, grid in zip(plan.panels, plan.grids, strict=True)]
    command = write_command(name, seeds, quick, gather, panels, values)
    return Reproduction(plan.paper, tuple(tables), command, _say_quick(plan, tables, cache, values) if quick else "")


def _say_quick(plan: Plan, tables: Sequence[Comparison], cache: Cache, values: Mapping[str, Any]) -> str:
    """Say what --quick changed in the cells that ran."""
    whole = [plan.paper.cells(each, False, values) for each in plan.panels]
    return describe_shortening(
        (record.settings["slots"], _count_slots(full[cell], cache))
        for full, table in zip(whole, tables, strict=True)
        for cell, records in table.runs.items()
        for record in records
    )


def _count_slots(experiment: Experiment, cache: Cache) -> int:
    """Return the number of slots that a domain lasts in an experiment."""
    return experiment.slots or choose_slots(experiment, choose_methods(experiment), cache.data(experiment))


def write_command(
    name: str, seeds: int, quick: bool, gather: bool, panels: Sequence[str], values: Mapping[str, Any]
) -> str:
    """Return the command that makes the same table."""
    words = [f"fedctta reproduce {name}", *(f"{key}={value}" for key, value in values.items() if key != "device")]
    words += [f'--panel "{panel}"' for panel in panels]
    words += [f"--seeds {seeds}"] if seeds > 1 else []
    return " ".join([*words, *(["--quick"] if quick else []), *(["--gather"] if gather else [])])
