from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.collections import PathCollection

from fedctta.report.comparison import Comparison, Entry, Line
from fedctta.report.panels import panel_figure
from fedctta.report.weights import MOMENTS, depict
from fedctta.results.digests import Digest, digest
from fedctta.results.records import Record

Fake = Callable[..., Record]


def short(run: Record) -> Digest:
    return digest(run, depict(run))


@pytest.fixture
def table(fake: Fake) -> Comparison:
    lines = (
        Line("FedAvg", (Entry((60.0, 61.0), 61.5), Entry((70.0,)))),
        Line("FedTSA", (Entry((64.0,), 63.0), Entry(reason="no"))),
    )
    made = {(title, "1"): fake(aggregator=title.lower()) for title in ("FedAvg", "FedTSA")}
    runs = {cell: (short(run),) for cell, run in made.items()}
    return Comparison("a panel", ("1", "2"), lines, runs=runs)


def heat(figure) -> list[np.ndarray]:
    return [np.asarray(image.get_array()) for ax in figure.axes for image in ax.images]


def test_dots_show_ours_and_the_papers(table):
    figure = panel_figure(table)
    first = figure.axes[0]
    assert [text.get_text() for text in first.get_yticklabels()] == ["FedAvg", "FedTSA"]
    drawn = sorted(float(x) for line in first.lines for x in np.atleast_1d(line.get_xdata()))
    assert {60.5, 61.5, 63.0, 64.0} <= set(drawn)


def test_lines_follow_the_columns(table):
    (ax,) = panel_figure(replace(table, figure="lines", axis="T")).axes
    assert ax.get_xlabel() == "T"
    assert [60.5, 70.0] in [list(map(float, line.get_ydata())) for line in ax.lines]


def test_lines_that_coincide_are_named(table):
    lines = tuple(replace(line, entries=table.lines[0].entries) for line in table.lines)
    (ax,) = panel_figure(replace(table, figure="lines", axis="T", lines=lines)).axes
    assert ax.get_xlabel() == "T\nin one line: FedAvg = FedTSA"
    below, above = (dots.get_sizes() for dots in ax.collections if isinstance(dots, PathCollection))
    assert (below > above).all()


@pytest.mark.parametrize(
    ("metric", "label"),
    [
        ("accuracy", "accuracy (%)"),
        ("miou", "mIoU (%)"),
        ("minor", "accuracy of"),
        ("forgetting", "forgetting (points)"),
        ("seconds", "seconds per client"),
    ],
)
def test_axes_are_named_after_what_is_counted(table, metric, label):
    dots, lines = (panel_figure(replace(table, figure=figure, metric=metric)) for figure in ("dots", "lines"))
    assert all(ax.get_xlabel().startswith(label) for ax in dots.axes)
    assert lines.axes[0].get_ylabel().startswith(label)


def test_matrices_are_those_of_the_run(table, fake):
    figure = panel_figure(replace(table, figure="matrices"))
    pictures = [picture for picture in heat(figure) if picture.shape == (4, 4)]
    assert len(pictures) == 2 * MOMENTS
    kept = fake(aggregator="fedtsa").collaboration
    assert all(any(np.array_equal(picture, w) for w in kept) for picture in pictures[MOMENTS:])


@pytest.mark.parametrize(
    ("aggregator", "kept", "titles"), [("fedavg", 2, [1, 30]), ("fedavg", 1, [1]), ("local", 1, [])]
)
def test_a_matrix_is_shown_once(table, fake, aggregator, kept, titles):
    runs = {("FedAvg", "1"): (short(fake(aggregator=aggregator, kept=kept)),)}
    figure = panel_figure(replace(table, figure="matrices", runs=runs))
    shown = [title for ax in figure.axes if ax.images and (title := ax.get_title("left"))]
    assert shown == ([f"round {k}" for k in titles] or ["every round"])


def test_the_first_client_over_time(table, fake):
    figure = panel_figure(replace(table, figure="client"))
    (picture, _) = (p for p in heat(figure) if p.shape == (4, 30))
    assert np.array_equal(picture, fake(aggregator="fedavg").collaboration[:, 0].T)


@pytest.mark.parametrize("kept", [1, 7])
def test_a_sample_of_matrices_stands_until_the_next(kept, fake, table):
    run = fake(aggregator="fedtsa", kept=kept)
    figure = panel_figure(replace(table, figure="client", runs={("FedTSA", "1"): (short(run),)}))
    (picture,) = (p for p in heat(figure) if p.shape == (4, 30))
    assert np.array_equal(picture[:, -1], run.collaboration[-1, 0])


def test_a_run_whose_weights_were_not_kept_is_not_drawn(table, fake):
    runs = {("FedAvg", "1"): (digest(fake(aggregator="fedavg")),)}
    for figure in ("matrices", "client"):
        assert panel_figure(replace(table, figure=figure, runs=runs)) is None
    assert panel_figure(replace(table, runs=runs)) is not None


def test_nothing_to_draw_gives_no_figure(table):
    assert panel_figure(replace(table, figure="none")) is None
    assert panel_figure(replace(table, runs={("FedAvg", "1"): ()})) is None
