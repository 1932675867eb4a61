"""The measurements as text: the same grids for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from fedctta.adapters import adapters
from fedctta.bench.cells import WAYS, Plan
from fedctta.bench.measure import Row, Skipped
from fedctta.machine import hardware
from fedctta.report.text import number, roomy

RATIOS = (("b", "a"), ("c", "b"), ("d", "b"))
WORDS = 3  # columns that hold words
Grid = tuple[list[str], list[list[str]]]


def heading(plan: Plan) -> str:
    """Return what was measured and on what."""
    machine = f"batch {plan.cells[0].batch}, {hardware(plan.device)}, {plan.precision}"
    machine += "" if plan.storage == "float32" else f", our clients stored in {plan.storage}"
    return (
        f"{machine}; images and weights are random, so no data are needed. Medians over rounds, the ways taking turns:"
        " absolute times depend on the machine, the ratios are what to look at."
    )


def grids(rows: Sequence[Row], ways: Sequence[str]) -> dict[str, Grid]:
    """Return the tables by title: times with their ratios, then speed and memory."""
    ratios = [(over, under) for over, under in RATIOS if over in ways and under in ways]
    head = ["model", "adapter", "aggregator", "clients"]
    times = [*head, *(f"{way} {WAYS[way]}" for way in ways), *(f"{over}/{under}" for over, under in ratios)]
    costs = [*head, *(f"{way} images/s" for way in ways), *(f"{way} MB" for way in ways)]
    first, second = [], []
    for row in rows:
        name = [row.cell.network, row.cell.adapter, row.cell.aggregator, f"{row.cell.clients:,}"]
        spent = [_milliseconds(row, way) for way in ways]
        first.append([*name, *spent, *(number(row.ratio(*pair)) for pair in ratios)])
        speed = [number(row.images_per_second(way), 0) for way in ways]
        peaks = [timing.peak_mb if (timing := row.timing(way)) else float("nan") for way in ways]
        second.append([*name, *speed, *(number(peak, 0) for peak in peaks)])
    return {"milliseconds per round": (times, first), "images per second, and peak memory": (costs, second)}


def skipped(rows: Sequence[Row]) -> list[str]:
    """Return a line for everything that was not measured; ways of a cell with the same reason share one."""
    lines = []
    for row in rows:
        ways: dict[str, list[str]] = {}
        for way, found in row.found.items():
            if isinstance(found, Skipped):
                ways.setdefault(found.reason, []).append(way)
        lines += [f"{row.cell.label}, {' and '.join(those)}: skipped, {reason}" for reason, those in ways.items()]
    return lines


def notes(rows: Sequence[Row]) -> list[str]:
    """Return a line for every method of which not all rounds are measured."""
    reviewing = sorted({row.cell.adapter for row in rows if adapters.classes()[row.cell.adapter].reviews})
    return [
        f"{name}: rounds in which no client reviews its batch; others take several times as long" for name in reviewing
    ]


def print_rows(rows: Sequence[Row], plan: Plan, console: Console) -> None:
    """Print everything to a terminal."""
    console = roomy(console)
    console.print(heading(plan))
    for title, (head, body) in grids(rows, plan.ways).items():
        view = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="dim")
        for k, name in enumerate(head):
            view.add_column(name, justify="left" if k < WORDS else "right")
        for texts in body:
            view.add_row(*texts)
        console.print()
        console.print(view)
    console.print()
    for line in [*notes(rows), *skipped(rows)]:
        console.print(line, style="dim", soft_wrap=True)


def markdown(rows: Sequence[Row], plan: Plan) -> str:
    """Return everything as a page of Markdown."""
    parts = ["# fedctta bench", heading(plan)]
    parts.append("\n".join(f"- **{way}** {WAYS[way]}" for way in plan.ways))
    for title, (head, body) in grids(rows, plan.ways).items():
        rule = [":--" if k < WORDS else "--:" for k in range(len(head))]
        lines = ["| " + " | ".join(line) + " |" for line in (head, rule, *body)]
        parts += [f"## {title[0].upper()}{title[1:]}", "\n".join(lines)]
    parts += notes(rows)
    if told := skipped(rows):
        parts += ["## Not measured", "\n".join(f"- {line}" for line in told)]
    return "\n\n".join(parts) + "\n"


def _milliseconds(row: Row, way: str) -> str:
    return "skipped" if isinstance(row.found.get(way), Skipped) else number(1000 * row.seconds(way), 1)
