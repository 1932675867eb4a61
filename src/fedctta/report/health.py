"""The health of a run's clients: the accuracy estimated without labels beside the true one, and the alarms."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import isfinite, nan
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedctta.report.colours import Pen
from fedctta.report.columns import Column
from fedctta.report.curves import accuracy_over_time, mean_over_time
from fedctta.report.text import html_table, number
from fedctta.results.health import NOBODY, SOURCE
from fedctta.results.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SOURCE_INK, _ALARM_INK = "#8a8f98", "#a84a00"


class Fared(NamedTuple):
    """How the clients of one method fared in one setting: percent over all seeds, and counts."""

    estimate: float  # of the accuracy, mean over clients and rounds; nan: no check yet
    accuracy: float  # nan without labels
    source: float  # estimate of the source model's accuracy
    alarms: int
    alarmed: int  # clients with an alarm
    clients: int
    by_source: float  # share of batches that the source model answered


def measure_health(runs: Sequence[Record]) -> Fared:
    """Return how the clients of runs that were watched fared."""
    return Fared(
        estimate=100 * _mean([run.estimate for run in runs]),
        accuracy=100 * float(np.mean([run.accuracy for run in runs])),
        source=100 * _mean([run.source_estimate for run in runs]),
        alarms=sum(len(run.alarms) for run in runs),
        alarmed=sum(len(np.unique(run.alarms[:, 0])) for run in runs),
        clients=sum(run.answers.shape[1] for run in runs),
        by_source=100 * float(np.mean(np.concatenate([run.answers[run.answers != NOBODY] == SOURCE for run in runs]))),
    )


def _mean(arrays: Sequence[NDArray[np.float32]]) -> float:
    known = np.concatenate([array[np.isfinite(array)] for array in arrays])
    return float(known.mean()) if len(known) else nan


def watched(column: Column) -> dict[str, tuple[Record, ...]]:
    """Return the methods of a column whose clients were watched."""
    return {label: runs for label, runs in column.methods.items() if all(run.watched for run in runs)}


def describe_health(columns: Sequence[Column]) -> Iterator[str]:
    """Yield a sentence per method and setting."""
    for column in columns:
        for label, runs in watched(column).items():
            found = measure_health(runs)
            truth = f", {number(found.accuracy)} % in truth" if isfinite(found.accuracy) else ""
            who = f" of {found.alarmed} of {found.clients} clients" if found.alarms else ""
            answers = f", the source model answered {found.by_source:.0f} % of batches" if found.by_source else ""
            alarms = f"{found.alarms} alarm{'' if found.alarms == 1 else 's'}{who}"
            words = f"accuracy {number(found.estimate)} % as estimated{truth}; {alarms}{answers}"
            yield f"{label} on {column.name}: {words}."


def health_figure(column: Column, colours: Mapping[str, Pen]) -> Figure | None:
    """Draw one picture per method: true and estimated accuracy over time, alarms below. None if nothing was watched."""
    methods = watched(column)
    if not methods:
        return None
    import matplotlib as mpl  # sentences on health do not wait for it
    from matplotlib.lines import Line2D

    from fedctta.report.figures import STYLE, new_figure, put_legend

    with mpl.rc_context(STYLE):
        figure = new_figure(9, 0.9 + 1.9 * len(methods))
        axes = figure.subplots(len(methods), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for ax, (label, runs) in zip(axes, methods.items(), strict=True):
            _draw(ax, runs, colours[label].colour)
            ax.set_title(f"{label}, {column.name}")
        axes[-1].set_xlabel("round")
        marks = {
            "accuracy": Line2D([], [], color="black"),
            "estimated without labels": Line2D([], [], color="black", linestyle="--"),
            "estimated for the source model": Line2D([], [], color=_SOURCE_INK, linestyle=":"),
            "alarm of a client (or of so many)": Line2D([], [], color=_ALARM_INK, linestyle="", marker="^"),
        }
        put_legend(figure, marks)
    return figure


def _draw(ax: Axes, runs: Sequence[Record], colour: str) -> None:
    curves = {
        "-": (accuracy_over_time(runs), colour),
        "--": (100 * mean_over_time([run.estimate for run in runs]), colour),
        ":": (100 * mean_over_time([run.source_estimate for run in runs]), _SOURCE_INK),
    }
    for style, (curve, ink) in curves.items():
        ax.plot(np.arange(1, len(curve) + 1), curve, linestyle=style, color=ink, linewidth=1.4)
    rounds, counts = np.unique(np.concatenate([run.alarms[:, 1] for run in runs]), return_counts=True)
    if len(rounds):  # a line of no points, unclipped, would spoil the layout
        ax.plot(rounds + 1, np.zeros(len(rounds)), "^", color=_ALARM_INK, markersize=6, clip_on=False, zorder=3)
    for at, count in zip(rounds.tolist(), counts.tolist(), strict=True):
        if count > 1:
            ax.annotate(str(count), (at + 1, 0), (0, 5), textcoords="offset points", size=7, ha="center")
    ax.set_ylim(0, 100)
    ax.set_ylabel("accuracy (%)")
    ax.grid(axis="y")
    ax.margins(x=0.01)


def health_section(columns: Sequence[Column], colours: Mapping[str, Pen]) -> str:
    """Return the page's section, with a table and a picture of every setting; "" if nothing was watched."""
    from fedctta.report.figures import save_png

    parts = []
    for column in columns:
        figure = health_figure(column, colours)
        if figure is not None:
            file = io.BytesIO()
            save_png(figure, file)
            data = base64.b64encode(file.getvalue()).decode("ascii")
            words = f'alt="Health, {escape(column.name)}" class="health"'
            parts.append(f'<p><img {words} src="data:image/png;base64,{data}"></p>')
    if not parts:
        return ""
    note = (
        "The estimate is that of the model that answers, a mean over clients and over the last checks; accuracy needs"
        " labels. Triangles are alarms: adapting seemed to do harm to a client."
    )
    return (
        '<section aria-labelledby="h-health"><h2 id="h-health">Health, told without labels</h2>'
        f'<div class="wide">{_table(columns)}</div>{"".join(parts)}<p class="note">{note}</p></section>'
    )


def _table(columns: Sequence[Column]) -> str:
    head = ("method", "setting", "estimate", "accuracy", "error", "source, estimated", "alarms", "clients", "by source")
    lines = []
    for column in columns:
        for label, runs in watched(column).items():
            found = measure_health(runs)
            cells = [number(found.estimate), number(found.accuracy), number(found.estimate - found.accuracy)]
            cells += [number(found.source), str(found.alarms), f"{found.alarmed} of {found.clients}"]
            lines.append([escape(label), escape(column.name), *cells, f"{found.by_source:.1f} %"])
    return html_table(head, lines, words=2)
