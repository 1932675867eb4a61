from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
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


def heat_maps(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.images]


def test_clients_are_numbered_along_both_axes(fake: Fake) -> None:
    (column,) = arrange([fake(clients=20)])
    maps = heat_maps(collaboration_figure(column))
    assert len(maps) == 4
    for axes in maps:
        for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
            assert [label.get_text() for label in labels] == ["1", "5", "9", "13", "17"]
        assert axes.get_xlabel() == "from client"
    assert maps[0].get_ylabel() == "FedCTTA\nclient"


def test_a_client_that_is_away_has_a_hatched_row_and_no_part_in_the_mean(fake: Fake) -> None:
    run = fake(rounds=9, clients=3)
    domain = run.domain.copy()
    domain[:, 1], domain[1:, 2] = -1, -1
    (column,) = arrange([replace(run, domain=domain)])
    mean, later = heat_maps(collaboration_figure(column))[:2]
    assert np.ma.getmaskarray(mean.images[0].get_array())[1].all()
    assert np.asarray(mean.images[0].get_array())[2] == pytest.approx(run.collaboration[0, 2], abs=1e-6)
    assert np.ma.getmaskarray(later.images[0].get_array()).all(1).tolist() == [False, True, True]
    assert mean.patch.get_hatch()


def test_a_method_that_sends_nothing_has_one_picture_of_every_round(fake: Fake) -> None:
    run = fake(aggregator="local", rounds=9, clients=3, kept=1)
    domain = run.domain.copy()
    domain[:3, 1] = -1  # not there in the one round that was kept
    (column,) = arrange([replace(run, domain=domain)])
    (only,) = heat_maps(collaboration_figure(column))
    assert only.get_title(loc="left") == "every round"
    assert np.array_equal(np.asarray(only.images[0].get_array()), np.eye(3))


def test_lines_that_coincide_are_all_seen_and_named(fake: Fake) -> None:
    names = ("local", "fedavg", "fedctta", "oracle")
    runs = [fake(rounds=60, aggregator=name, accuracy=0.5 if name == "local" else 0.7) for name in names]
    (column,) = arrange(runs)
    axes = time_figure(column, pens(column.methods)).axes[0]
    assert axes.get_xlabel().endswith("in one line: FedAvg = FedCTTA = Oracle (upper bound)")
    styles = [line.get_linestyle() for line in axes.get_lines()[:4]]
    assert styles == ["-", "-", "--", "--"]
    dashes = [line._dash_pattern for line in axes.get_lines()[2:4]]
    assert dashes[0][0] != dashes[1][0]  # each begins where the other has a gap
    assert all(on < off for _, (on, off) in dashes)


def test_dots_at_one_place_do_not_hide_each_other(fake: Fake) -> None:
    (column,) = arrange([fake(aggregator=name, accuracy=0.7) for name in ("fedavg", "oracle")])
    first, second = domain_figure(column, pens(column.methods)).axes[0].get_lines()
    assert (np.asarray(first.get_xdata()) == np.asarray(second.get_xdata())).all()
    assert (np.asarray(first.get_ydata()) != np.asarray(second.get_ydata())).all()


def test_a_smoothed_curve_says_of_which_rounds_it_is(fake: Fake) -> None:
    def label(rounds: int) -> str:
        (column,) = arrange([fake(rounds=rounds)])
        return time_figure(column, pens(column.methods)).axes[0].get_xlabel()

    assert label(750) == "round (each point: the 25 rounds up to it)"
    assert label(30) == "round"


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
