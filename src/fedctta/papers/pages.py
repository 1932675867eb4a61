"""Every page of the results, made of one file of records and nothing else: no images, no weights, no runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from fedctta.files import whole
from fedctta.papers.missing import NOT_RUN, Missing
from fedctta.papers.planning import Plan, add_seeds, name_panels
from fedctta.papers.reproduction import Reproduction, gather_tables, rank_presets, write_command
from fedctta.papers.tables import Paper, load_paper
from fedctta.report.panels import DRAWS_WEIGHTS
from fedctta.report.reproduction import draw, markdown, name_pictures
from fedctta.results.digests import Digest
from fedctta.runs.preset_files import published
from fedctta.runs.settings import Experiment, hash_words

Records = Mapping[str, Digest]


def make_page(name: str, records: Records) -> Reproduction | None:
    """Return the page of a preset, or None if no run of it is in the records.

    It is of the whole protocol, or of that of --quick where more of its cells are there. Panels of which less than half
    the cells have a run (they share it with another page) are left out, and the page's first line names them.
    """
    paper = load_paper(name)
    if paper.presets:
        return _rank(paper, records)
    plans = {quick: _plan(paper, quick, records) for quick in (False, True)}
    quick = plans[True].cells > plans[False].cells
    plan = plans[quick].plan
    if not plan.panels:
        return None
    found = {each.fingerprint: records.get(each.anywhere.fingerprint, Missing(NOT_RUN)) for each in plan.mine}
    shown = name_panels(paper, plan.panels) if len(plan.panels) < len(paper.panels) else []
    seeds = max(plan.seeds)
    command = write_command(name, seeds, quick, False, shown, {})
    return gather_tables(plan, found, command, quick, {})


class _Covered(NamedTuple):
    """A plan of the panels that are shown, and how many of their cells have a run."""

    plan: Plan
    cells: int


def _plan(paper: Paper, quick: bool, records: Records) -> _Covered:
    shown, grids, cells = [], [], 0
    for panel in paper.panels:
        grid = paper.cells(panel, quick, {})
        done = sum(_has_run(cell, panel.seeds, records) for cell in grid.values())
        if done and done >= len(grid) / 2:
            shown.append(panel)
            grids.append(grid)
            cells += done
    seeds = tuple(panel.seeds for panel in shown)
    return _Covered(Plan(paper, tuple(shown), tuple(grids), seeds, tuple(add_seeds(grids, seeds))), cells)


def _has_run(cell: Experiment, seeds: int, records: Records) -> bool:
    return any(key in records for key in _keys(cell, seeds))


def _keys(cell: Experiment, seeds: int) -> Iterator[str]:
    """Give the fingerprints of a cell's seeds; without making an experiment of each, which takes ten times as long."""
    words = {key: value for key, value in cell.anywhere.words.items() if key != "seed"}
    return (hash_words({**words, "seed": seed} if seed else words) for seed in range(seeds))


def _rank(paper: Paper, records: Records) -> Reproduction | None:
    made = {name: make_page(name, records) for name in paper.presets}
    parts = tuple(part for part in made.values() if part is not None)
    if not parts:
        return None
    lost = [load_paper(name).title for name, part in made.items() if part is None]
    missing = [f"{', '.join(lost)} (no runs)"] if lost else []
    missing += [f"in {part.paper.title}: {', '.join(part.missing)}" for part in parts if part.missing]
    seeds = max(panel.seeds for part in parts for panel in part.paper.panels)
    quick = "; ".join(dict.fromkeys(part.quick for part in parts if part.quick))
    command = write_command(paper.name, seeds, bool(quick), False, (), {})
    return Reproduction(paper, rank_presets(parts), command, quick, missing=tuple(missing))


def write_text(page: Reproduction) -> str:
    """Return a page in Markdown."""
    return markdown(page.story, page.tables, name_pictures(page.story, page.tables))


def make_pages(records: Records) -> dict[str, Reproduction]:
    """Return every page that records have runs of, by preset."""
    made = {name: make_page(name, records) for name in published()}
    return {name: page for name, page in made.items() if page is not None}


def write_page(folder: Path, page: Reproduction) -> bool:
    """Write a page and its pictures; those that it showed before and does not now are removed.

    A page of the whole protocol is not replaced by one of --quick: say whether it was written.
    """
    place = folder / page.paper.page
    before = place.read_text(encoding="utf-8") if place.is_file() else ""
    if page.quick and before and "--quick" not in before:
        return False
    drawn = draw(page.story, page.tables, place.parent)
    with whole(place) as part:
        part.write_text(write_text(page), encoding="utf-8", newline="\n")
    for old in set(re.findall(r"\]\(([^()/]+\.png)\)", before)) - {path.name for path in drawn.values()}:
        (place.parent / old).unlink(missing_ok=True)
    return True


def find_drawn() -> set[str]:
    """Return the fingerprints of the runs whose weights a figure of some preset shows: their first seeds."""
    papers = [load_paper(name) for name in published()]
    return {
        next(_keys(cell, 1))
        for paper in papers
        for panel in paper.panels
        if panel.figure in DRAWS_WEIGHTS
        for quick in (False, True)
        for cell in paper.cells(panel, quick, {}).values()
    }
