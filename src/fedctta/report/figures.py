"""The figures as matplotlib `Figure` objects; pyplot and its global state are never touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from fedctta.report.colours import Pen, pens
from fedctta.report.columns import Column, arrange, methods
from fedctta.report.curves import accuracy_by_domain, accuracy_over_time, shifts, window
from fedctta.report.overlaps import coincidence, near_dots, step_aside, together
from fedctta.report.text import human_bytes, number
from fedctta.report.titles import is_idle
from fedctta.report.weights import mean_weights, pick_moments, scale_floor, weights_there
from fedctta.results.records import Record

MANY_SHIFTS = 60  # more vertical lines than this would hide the curves
DASH = 6  # of lines that lie on one another, in line widths
_INK, _FAINT = "#30343a", "#dfe2e6"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "text.parse_math": False,  # a label may hold any character
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _FAINT,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": _FAINT,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
}


def plot(records: Sequence[Record]) -> Figure:
    """Draw the overview: for every column, accuracy over time beside accuracy by domain."""
    columns = arrange(records)
    colours = pens(methods(columns))
    domains = max(len(_domains(column)) for column in columns)
    with mpl.rc_context(STYLE):
        figure = new_figure(11, max(3.6, 1.2 + 0.2 * domains) * len(columns) + 0.5)
        axes = figure.subplots(len(columns), 2, squeeze=False, width_ratios=(3, 2))
        for (left, right), column in zip(axes, columns, strict=True):
            _draw_time(left, column, colours)
            _draw_domains(right, column, colours)
            left.set_title(f"Accuracy over time, {column.name}")
            right.set_title("Accuracy by domain")
        show_legend(figure, colours)
    return figure


def time_figure(column: Column, colours: Mapping[str, Pen]) -> Figure:
    """Accuracy over time of every method; a vertical line wherever any client's domain changes."""
    with mpl.rc_context(STYLE):
        figure = new_figure(9, 4.4)
        axes = figure.subplots()
        _draw_time(axes, column, colours)
        axes.set_title(f"Accuracy over time, {column.name}")
        show_legend(figure, {label: colours[label] for label in column.methods})
    return figure


def domain_figure(column: Column, colours: Mapping[str, Pen]) -> Figure:
    """Accuracy by domain: one line per domain, one dot per method."""
    with mpl.rc_context(STYLE):
        figure = new_figure(7.5, 1.6 + 0.27 * len(_domains(column)))
        axes = figure.subplots()
        _draw_domains(axes, column, colours)
        axes.set_title(f"Accuracy by domain, {column.name}")
        show_legend(figure, {label: colours[label] for label in column.methods}, dots=True)
    return figure


def collaboration_figure(column: Column) -> Figure:
    """Who listens to whom: for every method that recorded it, W averaged over rounds and at three moments."""
    runs = {
        label: found[0]
        for label, found in column.methods.items()
        if not is_idle(found[0].settings) and found[0].collaboration.size
    }
    with mpl.rc_context(STYLE):
        figure = new_figure(9.6, 2.5 * max(1, len(runs)) + 0.4)
        if not runs:
            figure.text(0.5, 0.5, "no collaboration was recorded", ha="center", va="center")
            return figure
        axes = figure.subplots(len(runs), 4, squeeze=False)
        for line, (label, run) in zip(axes, runs.items(), strict=True):
            _draw_collaboration(figure, line, label, run)
        away = any(np.isnan(weights_there(run)).any() for run in runs.values())
        title = f"Collaboration weights, {column.name}" + " (hatched: the client is away)" * away
        figure.suptitle(title, x=0.01, ha="left", weight="bold", size=10)
    return figure


def cost_figure(column: Column, colours: Mapping[str, Pen]) -> Figure:
    """Bytes sent and received, and seconds, of one run of every method."""
    labels = list(column.methods)[::-1]
    sizes = [np.mean([run.bytes_up + run.bytes_down for run in column.methods[label]]) for label in labels]
    seconds = [np.mean([run.seconds for run in column.methods[label]]) for label in labels]
    with mpl.rc_context(STYLE):
        figure = new_figure(9, 0.9 + 0.32 * len(labels))
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, values, words, title in (
            (left, sizes, [human_bytes(float(v)) for v in sizes], "Bytes sent and received"),
            (right, seconds, [f"{number(float(v), 1)} s" for v in seconds], "Time"),
        ):
            known = np.nan_to_num(np.asarray(values, dtype=float))
            edges = [colours[label].colour for label in labels]
            faces = ["white" if colours[label].dashed else colours[label].colour for label in labels]
            bars = axes.barh(labels, known, height=0.6, color=faces, edgecolor=edges)
            axes.bar_label(bars, words, padding=4)
            axes.set_title(f"{title}, {column.name}" if axes is left else title)
            axes.set_xticks([])
            axes.margins(x=0.22)
            axes.spines["bottom"].set_visible(False)
    return figure


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure that saves without a display."""
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save_png(figure: Figure, file: Path | IO[bytes]) -> None:
    """Write a figure as PNG. `Figure.savefig` would lay it out and draw it twice."""
    FigureCanvasAgg(figure).print_png(file)  # type: ignore[no-untyped-call]


def line_styles(colours: Mapping[str, Pen], curves: Mapping[str, NDArray[np.float64]]) -> dict[str, Any]:
    """Return the line style of every curve: its pen's, and dashes that leave gaps for those it lies on."""
    styles: dict[str, Any] = {label: (0, (4, 2)) if colours[label].dashed else "-" for label in curves}
    for group in together(curves):
        for place, label in enumerate(group):
            styles[label] = (DASH * (len(group) - place), (DASH, DASH * (len(group) - 1))) if place else "-"
    return styles


def _draw_time(axes: Axes, column: Column, colours: Mapping[str, Pen]) -> None:
    curves = {label: accuracy_over_time(runs) for label, runs in column.methods.items()}
    styles = line_styles(colours, curves)
    for label, curve in curves.items():
        axes.plot(
            np.arange(1, len(curve) + 1),
            curve,
            color=colours[label].colour,
            linestyle=styles[label],
            linewidth=1.4,
            marker="o" if len(curve) == 1 else None,
        )
    moved = shifts(next(iter(column.methods.values()))[0].domain)
    if len(moved) <= MANY_SHIFTS:
        for at in moved:
            axes.axvline(at + 0.5, color=_INK, alpha=0.45, linewidth=0.8, linestyle=":", zorder=0)
    width = window(max(map(len, curves.values())))
    smoothed = f"round (each point: the {width} rounds up to it)" if width > 1 else "round"
    same = coincidence(curves)
    axes.set_xlabel(f"{smoothed}\nin one line: {same}" if same else smoothed)
    axes.set_ylabel("accuracy (%)")
    axes.grid(axis="y")
    axes.margins(x=0.01)


def _draw_domains(axes: Axes, column: Column, colours: Mapping[str, Pen]) -> None:
    names = _domains(column)
    found = {label: accuracy_by_domain(runs) for label, runs in column.methods.items()}
    values = np.array([[found[label].get(name, np.nan) for name in names] for label in found])  # [methods, domains]
    aside = np.array([step_aside(row, near_dots(values)) for row in values.T.tolist()]).reshape(values.T.shape).T
    for label, across, off in zip(found, values, aside, strict=True):
        pen = colours[label]
        face = "white" if pen.dashed else pen.colour
        rows = np.arange(len(names)) + off
        axes.plot(across, rows, linestyle="", marker="o", markersize=5, color=pen.colour, markerfacecolor=face)
    axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel("accuracy (%)")
    axes.grid()


def _draw_collaboration(figure: Figure | SubFigure, line: Sequence[Axes], label: str, run: Record) -> None:
    """Draw one method's row: the mean of W, unless W is the same at all times, and W at some moments."""
    moments = pick_moments(run, 3)
    draw_weights(figure, line, label, [("mean", mean_weights(run)), *moments] if run.bytes_up else moments)


def draw_weights(
    figure: Figure | SubFigure,
    line: Sequence[Axes],
    label: str,
    pictures: Sequence[tuple[str, NDArray[Any]]],
) -> None:
    """Draw matrices of one method, with titles, side by side on one scale.

    Row i is what client i takes, hatched where it is away.
    """
    clients = len(pictures[0][1])
    known = np.concatenate([np.ravel(picture) for _, picture in pictures])
    top = max(float(np.max(known, initial=0, where=np.isfinite(known))), scale_floor(clients))
    for axes in line[len(pictures) :]:
        axes.set_axis_off()
    for axes, (title, picture) in zip(line, pictures, strict=False):
        hatch_absence(axes)
        shown = axes.imshow(picture, cmap="Blues", vmin=0, vmax=top, interpolation="nearest")
        axes.set_title(title, weight="normal", size=9)
        number_clients(axes.xaxis, clients)
        number_clients(axes.yaxis, clients)
        axes.set_xlabel("from client", size=8)
        axes.spines[:].set_visible(False)
    line[0].set_ylabel(f"{label}\nclient")
    bar = figure.colorbar(shown, ax=list(line), shrink=0.8, aspect=14, pad=0.01, ticks=[0, top], format="%.2g")
    bar.outline.set_visible(False)


def hatch_absence(axes: Axes) -> None:
    """Let cells that are nan, those of clients that are away, show as hatched."""
    axes.patch.set(hatch="//////", edgecolor=_FAINT, linewidth=0)


def number_clients(axis: Axis, clients: int) -> None:
    """Number some of the clients along an axis, counted from 1."""
    ticks = np.arange(0, clients, max(1, clients // 5))
    axis.set_ticks(ticks, [str(k + 1) for k in ticks], size=7)


def show_legend(figure: Figure, colours: Mapping[str, Pen], dots: bool = False) -> None:
    """Show every method as the figure draws it: a line, or a dot that is hollow where the line is dashed."""
    lines = [
        Line2D(
            [], [], color=pen.colour, linestyle="", marker="o", markerfacecolor="white" if pen.dashed else pen.colour
        )
        if dots
        else Line2D([], [], color=pen.colour, linestyle=(0, (4, 2)) if pen.dashed else "-", linewidth=2)
        for label, pen in colours.items()
    ]
    put_legend(figure, dict(zip(colours, lines, strict=True)))


def put_legend(figure: Figure, lines: Mapping[str, Line2D]) -> None:
    """Put a legend below a figure, with as many labels in a line as there is room for."""
    inches = 0.55 + 0.075 * max(map(len, lines))
    per_line = max(1, int(figure.get_figwidth() / inches))
    figure.legend(
        lines.values(), list(lines), loc="outside lower left", ncols=per_line, frameon=False, handlelength=1.6
    )


def _domains(column: Column) -> list[str]:
    runs = [run for found in column.methods.values() for run in found]
    met = {name for run in runs for name in run.accuracy_by_domain}
    return [name for name in dict.fromkeys(name for run in runs for name in run.domains) if name in met]
