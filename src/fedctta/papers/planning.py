"""Which cells of a published table or figure are run: its panels, their seeds, and a machine's share of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedctta.errors import UserError, unknown
from fedctta.machine import choose_device
from fedctta.papers.missing import Lacking
from fedctta.papers.tables import Panel, Paper, load_paper
from fedctta.runs.build import check_parts
from fedctta.runs.cache import Cache
from fedctta.runs.settings import Experiment
from fedctta.streams import ABSENT

Cells = Mapping[tuple[str, str], Experiment]


@dataclass(frozen=True)
class Plan:
    """The panels asked for, the cells of each, and the experiments, with all seeds, that are this machine's."""

    paper: Paper
    panels: tuple[Panel, ...]
    grids: tuple[Cells, ...]
    seeds: tuple[int, ...]
    mine: tuple[Experiment, ...]


def make_plan(
    name: str, seeds: int | None, quick: bool, panels: Sequence[str], shard: str, values: Mapping[str, Any]
) -> Plan:
    """Return what is to be run, with as many seeds as are asked for, or as panels do; a shared cell is run once."""
    paper = load_paper(name)
    choose_device(str(values.get("device", "auto")))  # refused before anything runs
    found = [(panel, paper.cells(panel, quick, values)) for panel in choose_panels(paper, panels)]
    found = [(panel, cells) for panel, cells in found if cells]  # --quick may drop all of a table
    if not found:
        raise UserError("--quick leaves these panels out: drop it, or choose others")
    chosen, grids = tuple(panel for panel, _ in found), tuple(cells for _, cells in found)
    _refuse_unused(name, grids, values)
    each = tuple(seeds or panel.seeds for panel in chosen)
    return Plan(paper, chosen, grids, each, tuple(take_shard(add_seeds(grids, each), shard)))


def _refuse_unused(name: str, grids: Sequence[Cells], values: Mapping[str, Any]) -> None:
    """Refuse a seed, which no cell heeds, and parameters of methods that are in no cell."""
    if "seed" in values:
        raise UserError("seed has no effect, as a reproduction plays seeds 0 to N - 1: say how many by --seeds")
    cells = [cell for grid in grids for cell in grid.values()]
    there = {method for cell in cells for method in (cell.adapter, cell.aggregator, cell.stream, cell.samples)}
    for key in values:
        method, dot, _ = key.partition(".")
        if dot and method not in there:
            raise UserError(f"{key} has no effect: {method} is in no cell of {name}; drop the key")


def add_seeds(grids: Sequence[Cells], seeds: Sequence[int]) -> list[Experiment]:
    """Return the experiments of all cells, every one once, with the first seed first."""
    every: dict[str, Experiment] = {}
    for seed in range(max(seeds, default=0)):
        for grid, wanted in zip(grids, seeds, strict=True):
            for cell in grid.values() if seed < wanted else ():
                experiment = replace(cell, seed=seed)
                every.setdefault(experiment.fingerprint, experiment)
    return list(every.values())


def choose_panels(paper: Paper, names: Sequence[str]) -> list[Panel]:
    """Return the panels of these names, or all columns of a panel of such a name; without names, all."""
    for name in names:
        if name not in (known := list_panels(paper)):
            raise unknown(f"panel of {paper.name}", name, known)
    return [panel for panel in paper.panels if not names or {panel.name, panel.group} & set(names)]


def list_panels(paper: Paper) -> list[str]:
    """Return the names that `choose_panels` knows: those of groups of panels, and of panels."""
    return list(dict.fromkeys(name for panel in paper.panels for name in (panel.group, panel.name) if name))


def name_panels(paper: Paper, panels: Sequence[Panel]) -> list[str]:
    """Return the names that `choose_panels` finds these panels by: their group's, where all of a group are there."""
    there = {panel.name for panel in panels}
    whole = {panel.group for panel in paper.panels} - {panel.group for panel in paper.panels if panel.name not in there}
    return list(dict.fromkeys(panel.group if panel.group in whole - {""} else panel.name for panel in panels))


def take_shard(experiments: Sequence[Experiment], shard: str) -> Sequence[Experiment]:
    """Return part k of n, written "k/n": every n-th experiment, beginning with the k-th."""
    part, _, parts = shard.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise UserError(f"--shard {shard} is not a part of a whole: write for example --shard 2/6")
    return experiments[int(part) - 1 :: int(parts)]


def check_lengths(panel: Panel, grid: Cells, cache: Cache, lacking: Lacking) -> None:
    """Refuse published numbers that are not as many as the parts they belong to, and the mean."""
    for (row, _), experiment in grid.items() if panel.by != "mean" else ():
        if row not in panel.published or lacking.reason(experiment, cache):
            continue
        try:
            stream = check_parts(experiment, choose_device(experiment.device), cache).stream
        except UserError:  # told as the cell's reason when its turn comes
            continue
        there = stream.domain != ABSENT
        parts = {
            "domain": len(np.unique(stream.domain[there])),
            "position": len(stream.data.names),
            "client": int(there.any(0).sum()),
            "class": len(stream.data.classes),
        }[panel.by]
        require_as_many(panel, row, parts + 1)


def require_as_many(panel: Panel, row: str, columns: int) -> None:
    """Refuse a row whose published numbers are not as many as our columns."""
    if len(panel.published[row]) != columns:
        raise UserError(
            f"panel {panel.name}: {row} has {len(panel.published[row])} published numbers for {columns} of ours (by"
            f" {panel.by}, and the mean): leave out the setting that changes ours, or mend the table"
        )
