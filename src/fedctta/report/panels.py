"""The figures of a reproduction: ours as dots or lines, the paper's as hollow diamonds, matrices over time."""

from __future__ import annotations

from math import isfinite

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from fedctta.report.colours import pens
from fedctta.report.comparison import MEASURES, Comparison
from fedctta.report.figures import (
    STYLE,
    draw_weights,
    hatch_absence,
    line_styles,
    new_figure,
    number_clients,
    show_legend,
)
from fedctta.report.overlaps import coincidence, covered, near_dots
from fedctta.report.weights import MOMENTS
from fedctta.results.digests import Weights

DRAWS_WEIGHTS = ("matrices", "client")  # figures of who listens to whom
_OURS, _PAPER = "#0072b2", "#d55e00"


def panel_figure(table: Comparison) -> Figure | None:
    """Return the figure of a panel, or None where it has none or nothing was run."""
    if not is_drawn(table):
        return None
    with mpl.rc_context(STYLE):
        return _DRAWN_BY[table.figure](table)


def is_drawn(table: Comparison) -> bool:
    """Whether a panel has a figure."""
    if table.figure in DRAWS_WEIGHTS:
        return bool(_first_runs(table))
    return table.figure != "none" and any(table.runs.values())


def dots_figure(table: Comparison) -> Figure:
    """Methods down: one picture per setting, or one line per domain or position, the paper's numbers beside ours."""
    if table.across != "mean":
        return lines_figure(table)
    labels = [line.label for line in table.lines]
    figure = new_figure(2.6 + 2.1 * len(table.columns), 1.2 + 0.27 * len(labels))
    axes = figure.subplots(1, len(table.columns), sharey=True, squeeze=False)[0]
    for k, (ax, column) in enumerate(zip(axes, table.columns, strict=True)):
        for row, line in enumerate(table.lines):
            entry = line.entries[k]
            if isfinite(entry.paper):
                ax.plot(entry.paper, row, "D", color=_PAPER, markerfacecolor="white", markersize=4.5)
            if entry.ours:
                spread = entry.spread if isfinite(entry.spread) else 0
                ax.errorbar(entry.mean, row, xerr=spread, fmt="o", color=_OURS, markersize=4.5, linewidth=1)
        ax.set_title(column)
        ax.set_yticks(range(len(labels)), labels)
        ax.set_ylim(len(labels) - 0.5, -0.5)
        ax.set_xlabel(MEASURES[table.metric])
        ax.grid()
    _explain(figure, table)
    return figure


def lines_figure(table: Comparison) -> Figure:
    """One line per method over the columns; the paper's numbers as diamonds of the same colour."""
    names = table.columns if table.across == "mean" else table.columns[:-1]  # the last is the mean
    colours = pens(line.label for line in table.lines)
    figure = new_figure(8 if len(names) > 8 else 6, 4.2)
    ax = figure.subplots()
    at = np.arange(len(names))
    curves = {line.label: np.array([entry.mean for entry in line.entries[: len(names)]]) for line in table.lines}
    styles = line_styles(colours, curves)
    values = np.array(list(curves.values()))
    sizes = 5 + 3 * covered(values, near_dots(values))  # of what lies below others, so that it shows around them
    for line, size in zip(table.lines, sizes, strict=True):
        colour, style, shown = colours[line.label].colour, styles[line.label], line.entries[: len(names)]
        spreads = [e.spread if isfinite(e.spread) else 0 for e in shown]
        means = curves[line.label]
        ax.errorbar(at, means, yerr=spreads, color=colour, linestyle=style, linewidth=1.4)
        ax.scatter(at, means, size**2, color=colour, linewidths=0, zorder=2.5)
        ax.plot(at, [e.paper for e in shown], "D", color=colour, markerfacecolor="white", markersize=4.5)
    crowded = sum(map(len, names)) > 70
    ticks = [name.replace("_", " ") for name in names]
    ax.set_xticks(at, ticks, rotation=40 if crowded else 0, ha="right" if crowded else "center")
    axis = table.axis or {"domain": "corruption", "position": "position in time", "class": "class"}.get(
        table.across, ""
    )
    same = coincidence(curves)
    ax.set_xlabel(f"{axis}\nin one line: {same}".lstrip() if same else axis)
    ax.set_ylabel(MEASURES[table.metric])
    ax.set_title(table.name)
    ax.grid(axis="y")
    if any(isfinite(entry.paper) for line in table.lines for entry in line.entries):
        ax.plot([], [], "D", color="#30343a", markerfacecolor="white", markersize=4.5, label="paper")
        ax.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)  # above: not a point
    show_legend(figure, colours)
    return figure


def matrices_figure(table: Comparison) -> Figure:
    """Who listens to whom, one line per method and one picture per moment, clients numbered from 1."""
    runs = _first_runs(table)
    figure = new_figure(1.2 + 1.75 * MOMENTS, 0.5 + 1.95 * len(runs))
    axes = figure.subplots(len(runs), MOMENTS, squeeze=False)
    for line, (label, (seen, _)) in zip(axes, runs, strict=True):
        draw_weights(figure, line, label, list(zip(seen.titles, seen.moments, strict=True)))
    return figure


def client_figure(table: Comparison) -> Figure:
    """What client 1 takes from every client over time; dotted lines where domains change."""
    runs = _first_runs(table)
    figure = new_figure(9, 0.7 + 2.2 * len(runs))
    axes = figure.subplots(len(runs), 1, squeeze=False)[:, 0]
    for ax, (label, (seen, rounds)) in zip(axes, runs, strict=True):
        weights = _over_time(seen, rounds)
        over = (0.5, len(weights) + 0.5, weights.shape[1] - 0.5, -0.5)  # rounds count from 1
        shown = ax.imshow(weights.T, cmap="Blues", vmin=0, aspect="auto", interpolation="nearest", extent=over)
        for at in seen.shifts:
            ax.axvline(at + 0.5, color="#30343a", alpha=0.4, linewidth=0.7, linestyle=":")
        ax.set_title(f"{label}: weights of client 1" + " (hatched: it is away)" * bool(np.isnan(weights).any()))
        ax.set_xlabel("round")
        ax.set_ylabel("from client")
        number_clients(ax.yaxis, weights.shape[1])
        hatch_absence(ax)
        ax.spines[:].set_visible(False)
        figure.colorbar(shown, ax=ax, pad=0.01, aspect=14).outline.set_visible(False)
    return figure


def _over_time(seen: Weights, rounds: int) -> NDArray[np.float32]:
    """Return weights[T, N] of client 1, each kept row standing until the next."""
    at = np.searchsorted(seen.rounds, np.arange(rounds), side="right") - 1
    weights: NDArray[np.float32] = seen.first[np.clip(at, 0, None)]
    return weights


def _first_runs(table: Comparison) -> list[tuple[str, tuple[Weights, int]]]:
    """Return the weights of the first seed of every row that has them, in its first setting, and the rounds."""
    found: dict[str, tuple[Weights, int]] = {}
    for (row, _), runs in table.runs.items():
        for run in runs:
            if run.weights is not None:
                found.setdefault(row, (run.weights, run.rounds))
    return list(found.items())


def _explain(figure: Figure, table: Comparison) -> None:
    marks = [Line2D([], [], color=_OURS, linestyle="", marker="o", label="ours")]
    if any(isfinite(entry.paper) for line in table.lines for entry in line.entries):
        marks.append(Line2D([], [], color=_PAPER, linestyle="", marker="D", markerfacecolor="white", label="paper"))
    figure.legend(handles=marks, loc="outside lower left", ncols=2, frameon=False)


_DRAWN_BY = {"dots": dots_figure, "lines": lines_figure, "matrices": matrices_figure, "client": client_figure}
