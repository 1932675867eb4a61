"""What a report tells of clients' health."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import numpy as np
import pytest

from fedctta.report.colours import pens
from fedctta.report.columns import arrange, methods
from fedctta.report.figures import save_png
from fedctta.report.folder import write_report
from fedctta.report.health import describe_health, health_figure, health_section, measure_health
from fedctta.results.health import ADAPTED, SOURCE

ROUNDS, CLIENTS = 6, 2


@pytest.fixture
def watched(fake):
    """A run of two clients, of which the second has an alarm and then rests."""
    record = fake(accuracy=0.5, rounds=ROUNDS, clients=CLIENTS, check=10, guard="reset")
    estimate = np.full((ROUNDS, CLIENTS), 0.6, np.float32)
    estimate[0] = nan
    answers = np.full((ROUNDS, CLIENTS), ADAPTED, np.uint8)
    answers[3:, 1] = SOURCE
    known = dict.fromkeys(("source_estimate", "disagreement", "top_share"), estimate / 2)
    return replace(record, estimate=estimate, answers=answers, alarms=np.array([[1, 3]]), **known)


def test_estimates_and_alarms_are_gathered(watched):
    found = measure_health([watched, watched])
    assert (found.estimate, found.source, found.accuracy) == pytest.approx((60, 30, 50))
    assert (found.alarms, found.alarmed, found.clients) == (2, 2, 4)
    assert found.by_source == pytest.approx(25)
    unknown = replace(watched, estimate=np.full_like(watched.estimate, nan))
    assert np.isnan(measure_health([unknown]).estimate)


def test_a_sentence_tells_it(watched, fake):
    (line,) = describe_health(arrange([watched, fake(rounds=ROUNDS, adapter="none", aggregator="local")]))
    assert line == (
        "FedCTTA on niid: accuracy 60.00 % as estimated, 50.00 % in truth; 1 alarm of 1 of 2 clients, the source model"
        " answered 25 % of batches."
    )
    quiet = replace(watched, alarms=np.zeros((0, 2), np.int64), answers=np.ones_like(watched.answers))
    bare = replace(quiet, seen=np.zeros_like(quiet.seen), correct=np.zeros_like(quiet.correct))
    (line,) = describe_health(arrange([bare]))
    assert line == "FedCTTA on niid: accuracy 60.00 % as estimated; 0 alarms."


def test_the_figure_shows_both_accuracies_and_the_alarms(watched):
    (column,) = arrange([watched])
    figure = health_figure(column, pens(methods([column])))
    (axes,) = figure.axes
    truth, estimate, source, alarms = (line.get_ydata() for line in axes.lines)
    assert truth[-1] == pytest.approx(watched.accuracy_by_slot[-1] * 100)
    assert np.isnan(estimate[0])
    assert estimate[1:] == pytest.approx(np.full(ROUNDS - 1, 60))
    assert source[-1] == pytest.approx(30)
    assert axes.lines[3].get_xdata().tolist() == [4]
    assert len(alarms) == 1


@pytest.mark.filterwarnings("error")
def test_the_figure_has_room_for_five_methods(watched, tmp_path):
    names = ("local", "fedavg", "fedctta", "fedtsa", "oracle")
    calm = replace(watched, alarms=np.zeros((0, 2), np.int64))
    runs = [replace(calm, settings={**calm.settings, "aggregator": name}) for name in names]
    (column,) = arrange(runs)
    figure = health_figure(column, pens(methods([column])))
    save_png(figure, tmp_path / "health.png")
    assert len(figure.axes) == 5
    assert all(axes.get_position().width > 0.8 for axes in figure.axes)


def test_runs_without_checks_have_no_section(fake):
    columns = arrange([fake(rounds=ROUNDS)])
    assert health_section(columns, pens(methods(columns))) == ""
    assert health_figure(columns[0], pens(methods(columns))) is None
    assert list(describe_health(columns)) == []


def test_the_report_has_table_picture_and_columns(watched, fake, tmp_path):
    idle = fake(rounds=ROUNDS, clients=CLIENTS, adapter="none", aggregator="local")
    page = write_report([watched, idle], tmp_path).read_text(encoding="utf-8")
    assert "Health, told without labels" in page
    assert '<td class="n">60.00</td><td class="n">50.00</td><td class="n">10.00</td>' in page
    assert 'class="health" src="data:image/png;base64,' in page
    assert (tmp_path / "health.png").stat().st_size > 1000
    head, first, second, *others = (tmp_path / "by_client.csv").read_text().splitlines()
    assert {"estimated_accuracy", "estimated_source_accuracy", "answers", "alarms"} <= set(
        head.replace('"', "").split(",")
    )
    assert '"adapted"' in first
    assert '"[3]"' in second
    assert len(others) == CLIENTS
