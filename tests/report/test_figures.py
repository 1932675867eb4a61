from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import fedctta.report
from fedctta.report import plot
from fedctta.report.colours import pens
from fedctta.report.columns import arrange
from fedctta.report.figures import collaboration_figure, cost_figure, domain_figure, time_figure
from fedctta.results.records import Record

Fake = Callable[..., Record]


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "absent": {"absent": True},
    "one client": {"clients": 1},
    "one round": {"rounds": 1},
    "nothing kept": {"kept": 0},
    "odd name": {"aggregator": "$\\bad{$"},
}


@pytest.fixture(params=KINDS)
def run(request: pytest.FixtureRequest, fake: Fake) -> Record:
    """One run of every kind."""
    return fake(**KINDS[request.param])


def name_of(run: Record) -> str:
    return {"fedctta": "FedCTTA"}.get(name := run.settings["aggregator"], name)


def draw(figure: Figure) -> np.ndarray:
    figure.set_dpi(50)
    figure.canvas.draw()
    return np.array(figure.canvas.buffer_rgba())  # type: ignore[attr-defined]


def is_seen(artist: Artist) -> bool:
    """Whether the picture is another one without it."""
    figure = artist.get_figure(root=True)
    assert isinstance(figure, Figure)
    shown = draw(figure)
    artist.set_visible(False)
    hidden = draw(figure)
    artist.set_visible(True)
    return not np.array_equal(shown, hidden)


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def is_vertical(line: Line2D) -> bool:
    x = np.atleast_1d(line.get_xdata())
    return len(x) == 2 and x[0] == x[1]


def vertical_lines(figure: Figure) -> int:
    return sum(map(is_vertical, figure.axes[0].get_lines()))


def share(right: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """In percent; nan where nothing was seen."""
    return np.where(seen > 0, 100 * right / np.maximum(seen, 1), np.nan)


def test_accuracy_over_time_is_that_of_every_round(run: Record) -> None:
    (column,) = arrange([run])
    figure = time_figure(column, pens(column.methods))
    (curve,) = (line for line in figure.axes[0].get_lines() if not is_vertical(line))
    np.testing.assert_array_equal(curve.get_xdata(), np.arange(1, len(run.seen) + 1))
    np.testing.assert_allclose(np.asarray(curve.get_ydata()), share(run.correct.sum(1), run.seen.sum(1)))
    assert legend(figure) == [name_of(run)]
    assert is_seen(curve)


def test_accuracy_by_domain_is_that_of_the_domains_met(run: Record) -> None:
    (column,) = arrange([run])
    figure = domain_figure(column, pens(column.methods))
    (dots,) = figure.axes[0].get_lines()
    met = [run.domain == k for k in range(len(run.domains))]
    expected = {
        name.replace("_", " "): share(run.correct[there].sum(), run.seen[there].sum())
        for name, there in zip(run.domains, met, strict=True)
        if there.any()
    }
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(expected)
    np.testing.assert_allclose(np.asarray(dots.get_xdata()), list(expected.values()))
    np.testing.assert_array_equal(dots.get_ydata(), np.arange(len(expected)))
    assert legend(figure) == [name_of(run)]
    assert is_seen(dots)


def test_collaboration_is_the_mean_over_the_rounds_in_which_a_client_was_there(run: Record) -> None:
    (column,) = arrange([run])
    figure = collaboration_figure(column)
    if not len(run.collaboration):
        assert [text.get_text() for text in figure.texts] == ["no collaboration was recorded"]
        assert is_seen(figure.texts[0])
        return
    mean = heat_maps(figure)[0]
    there = run.domain[run.collaboration_rounds] >= 0
    expected = [run.collaboration[there[:, i], i].mean(0) for i in range(there.shape[1])]
    np.testing.assert_allclose(np.asarray(mean.images[0].get_array()), expected, atol=1e-6)
    assert mean.get_ylabel() == f"{name_of(run)}\nclient"
    assert is_seen(mean.images[0])


def test_cost_is_all_bytes_and_the_seconds(run: Record) -> None:
    (column,) = arrange([run])
    figure = cost_figure(column, pens(column.methods))
    bars = [axes.patches[0] for axes in figure.axes]
    assert [bar.get_width() for bar in bars] == [run.bytes_up + run.bytes_down, run.seconds]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [name_of(run)]
    assert all(map(is_seen, bars))


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
    figure = plot(runs)
    draw(figure)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    over_time = [f"Accuracy over time, {stream}" for stream in ("niid", "iid")]
    assert titles == [over_time[0], "Accuracy by domain", over_time[1], "Accuracy by domain"]
    for axes in figure.axes:
        assert len([line for line in axes.get_lines() if not is_vertical(line)]) == 2
    assert legend(figure) == ["Local", "FedCTTA"]


def test_shifts_are_marked_unless_there_are_too_many(fake: Fake) -> None:
    def lines(rounds: int, **options: object) -> int:
        (column,) = arrange([fake(rounds=rounds, stream="iid", **options)])
        return vertical_lines(time_figure(column, pens(column.methods)))

    assert lines(30) == 14  # 15 domains
    assert lines(100, domains=tuple(f"d{k}" for k in range(100))) == 0


def test_pyplot_is_never_imported() -> None:
    folder = Path(fedctta.report.__file__).parent
    assert not [file.name for file in folder.glob("*.py") if re.search(r"import.*pyplot", file.read_text())]
