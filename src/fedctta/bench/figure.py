"""Milliseconds per round over the number of clients, one panel for every method and model."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from fedctta.bench.cells import WAYS
from fedctta.bench.measure import Row
from fedctta.report.colours import Pen
from fedctta.report.figures import STYLE, new_figure, show_legend

PENS = {
    "a": Pen("#8a8f98", True),
    "a'": Pen("#c4c7cc", True),
    "b": Pen("#d55e00", False),
    "c": Pen("#0072b2", False),
    "d": Pen("#009e73", False),
}


def plot(rows: Sequence[Row], ways: Sequence[str]) -> Figure:
    """Draw all cells: models and aggregators down, adapters across, both axes logarithmic and common to all panels."""
    down = list(dict.fromkeys((row.cell.network, row.cell.aggregator) for row in rows))
    across = list(dict.fromkeys(row.cell.adapter for row in rows))
    counts = sorted({row.cell.clients for row in rows})
    with mpl.rc_context(STYLE):
        figure = new_figure(max(6.0, 2.5 * len(across) + 0.6), 2.0 * len(down) + 0.8)
        grid = figure.subplots(len(down), len(across), squeeze=False, sharex=True, sharey=True)
        for line, (model, aggregator) in zip(grid, down, strict=True):
            for axes, adapter in zip(line, across, strict=True):
                panel = (model, adapter, aggregator)
                here = [r for r in rows if (r.cell.network, r.cell.adapter, r.cell.aggregator) == panel]
                _draw(axes, here, ways)
                axes.set_title(f"{model}, {adapter}+{aggregator}", size=8)
            line[0].set_ylabel("ms per round")
        first = grid[0][0]  # its scales are everybody's
        first.set(xscale="log", yscale="log", xlim=(counts[0] / 1.6, counts[-1] * 1.6))
        first.set_xticks(counts, [f"{count:,}" for count in counts])
        first.xaxis.set_minor_locator(NullLocator())
        first.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        first.yaxis.set_minor_locator(NullLocator())
        first.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        for axes in grid[-1]:
            axes.set_xlabel("clients")
        show_legend(figure, {f"{way} {WAYS[way]}": PENS[way] for way in ways})
    return figure


def _draw(axes: Axes, rows: Sequence[Row], ways: Sequence[str]) -> None:
    for way in ways:
        found = [row for row in rows if row.timing(way)]
        axes.plot(
            [row.cell.clients for row in found],
            [1000 * row.seconds(way) for row in found],
            color=PENS[way].colour,
            linestyle=(0, (4, 2)) if PENS[way].dashed else "-",
            marker="o",
            markersize=4,
        )
    axes.grid(axis="y")
