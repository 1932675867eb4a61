"""What a page lacks: panels, seeds and cells that its preset asks for and that have no run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fedctta.papers.planning import name_panels
from fedctta.papers.tables import Panel, Paper
from fedctta.report.comparison import Comparison


def find_missing(paper: Paper, panels: Sequence[Panel], tables: Sequence[Comparison]) -> tuple[str, ...]:
    """Return what the tables of these panels lack of the whole preset, in words."""
    return tuple(filter(None, (_panels(paper, panels), _cells(panels, tables), _seeds(panels, tables))))


def _panels(paper: Paper, shown: Sequence[Panel]) -> str:
    there = {panel.name for panel in shown}
    lost = _name_lost(paper, [panel for panel in paper.panels if panel.name not in there])
    return f"{' and '.join([', '.join(lost[:-1]), lost[-1]] if lost[1:] else lost)} (no runs)" if lost else ""


def _name_lost(paper: Paper, lost: Sequence[Panel]) -> list[str]:
    """Name panels; of a group of which several are lost and not all, say how many."""
    every, gone = Counter(panel.group for panel in paper.panels), Counter(panel.group for panel in lost)
    some = [group for group, count in gone.items() if group and 1 < count < every[group]]
    counted = [f"{gone[group]} of {every[group]} tables of {_quote(group)}" for group in some]
    return counted + [_quote(name) for name in name_panels(paper, [each for each in lost if each.group not in some])]


def _quote(name: str) -> str:
    return f'"{name}"' if "," in name else name


def _cells(panels: Sequence[Panel], tables: Sequence[Comparison]) -> str:
    """Count the cells without a run, and name the panel that they are in where there are others."""
    lost = [sum(not found for found in table.runs.values()) for table in tables]
    if not any(lost):
        return ""
    short = [panel.name for panel, count in zip(panels, lost, strict=True) if count]
    where = f" (in {_quote(short[0])})" if len(short) == 1 < len(panels) else ""
    return f"{sum(lost)} of {sum(len(table.runs) for table in tables)} cells{where}"


def _seeds(panels: Sequence[Panel], tables: Sequence[Comparison]) -> str:
    """Say how many seeds the cells with runs have, where these are not as many as asked for."""
    pairs = [
        (len(found), panel.seeds)
        for panel, table in zip(panels, tables, strict=True)
        for found in table.runs.values()
        if found
    ]
    if not (short := [(have, want) for have, want in pairs if have < want]):
        return ""
    wanted = sorted({want for _, want in short})
    have = sorted({have for have, _ in short})
    counts = f"{have[0]}" if len(have) == 1 else f"{have[0]} to {have[-1]}"
    words = f"seeds ({counts} of {' or '.join(map(str, wanted))}"
    return words + (")" if len(short) == len(pairs) else f" in {len(short)} of {len(pairs)} cells)")
