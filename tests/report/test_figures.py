from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import fedctta.report
from fedctta.records import Record
from fedctta.report import plot
from fedctta.report.colours import pens
from fedctta.report.columns import arrange
from fedctta.report.figures import collaboration_figure, cost_figure, domain_figure, time_figure

Fake = Callable[..., Record]


def drawn(figure: Figure) -> np.ndarray:
    figure.set_dpi(50)
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())  # type: ignore[attr-defined]


def vertical_lines(figure: Figure) -> int:
    lines = figure.axes[0].get_lines()
    return sum(len(x := np.atleast_1d(line.get_xdata())) == 2 and x[0] == x[1] for line in lines)


@pytest.mark.parametrize("kind", ["plain", "absent", "one client", "one round", "nothing kept", "odd name"])
def test_every_figure_draws_for_every_kind_of_run(fake: Fake, kind: str) -> None:
    options = {
        "plain": {},
        "absent": {"absent": True},
        "one client": {"clients": 1},
        "one round": {"rounds": 1},
        "nothing kept": {"kept": 0},
        "odd name": {"aggregator": "$\\bad{"},
    }[kind]
    (column,) = arrange([fake(**options)])
    colours = pens(column.methods)
    for figure in (
        time_figure(column, colours),
        domain_figure(column, colours),
        collaboration_figure(column),
        cost_figure(column, colours),
    ):
        assert drawn(figure).std() > 0


@pytest.mark.parametrize(("kept", "expected"), [(1, 1), (2, 2), (9, 3)])
def test_no_moment_of_a_collaboration_is_shown_twice(fake: Fake, kept: int, expected: int) -> None:
    (column,) = arrange([fake(rounds=9, kept=kept)])
    titles = [axes.get_title(loc="left") for axes in collaboration_figure(column).axes]
    rounds = [title for title in titles if title.startswith("round")]
    assert len(rounds) == len(set(rounds)) == expected


def test_overview_has_a_line_a_column(fake: Fake) -> None:
    runs = [fake(rounds=6, stream=s, aggregator=a) for s in ("niid", "iid") for a in ("local", "fedctta")]
    assert len(plot(runs).axes) == 4
    assert drawn(plot(runs)).std() > 0


def test_shifts_are_marked_unless_there_are_too_many(fake: Fake) -> None:
    def lines(rounds: int, **options: object) -> int:
        (column,) = arrange([fake(rounds=rounds, stream="iid", **options)])
        return vertical_lines(time_figure(column, pens(column.methods)))

    assert lines(30) == 14  # 15 domains
    assert lines(100, domains=tuple(f"d{k}" for k in range(100))) == 0


def test_pyplot_is_never_imported() -> None:
    folder = Path(fedctta.report.__file__).parent
    assert not [file.name for file in folder.glob("*.py") if re.search(r"import.*pyplot", file.read_text())]
