from __future__ import annotations

import csv
import io
from dataclasses import replace
from math import isnan, nan
from types import SimpleNamespace

import pytest
from rich.console import Console

from fedctta.report.comparison import Comparison, Entry, Line, csv_of, print_comparison


@pytest.fixture
def means() -> Comparison:
    lines = (
        Line("FedAvg", (Entry((60.0, 62.0), 61.5, 0.2), Entry((70.0,)))),
        Line("FedTSA", (Entry((64.0,), 63.0), Entry(reason="ValueError: no"))),
        Line("Oracle (upper bound)", (Entry((80.0,)), Entry((81.0,)))),
    )
    return Comparison("a panel", ("NIID | bn", "IID"), lines, text="We get {FedAvg |\nIID} and {nobody | IID}.")


@pytest.fixture
def domains() -> Comparison:
    lines = (
        Line("FedAvg", (Entry((60.0,), 50.0), Entry((70.0,), 75.0), Entry((65.0,), nan))),
        Line("FedTSA", (Entry((61.0,)), Entry((69.0,)), Entry((65.0,)))),
    )
    return Comparison("by domain", ("fog", "snow", "mean"), lines, across="domain")


def test_mean_spread_and_difference_by_hand():
    entry = Entry((60.0, 62.0), paper=61.5)
    assert (entry.mean, entry.spread, entry.difference) == (61.0, pytest.approx(2**0.5), -0.5)
    assert isnan(Entry((60.0,)).spread)
    assert isnan(Entry().mean)


def test_settings_stand_beside_the_paper(means):
    head, body = means.grid()
    assert head == ["method", "NIID | bn", "paper (diff)", "IID"]
    assert body[0] == ["FedAvg", "61.00 ± 1.41", "61.50 (-0.50)", "70.00"]
    assert body[1] == ["FedTSA", "64.00", "63.00 (+1.00)", "failed"]
    assert body[2] == ["Oracle (upper bound)", "80.00", "-", "81.00"]


def test_the_best_is_bold_and_the_upper_bound_does_not_compete(means):
    text = means.markdown()
    assert "**64.00**" in text
    assert "**80.00**" not in text
    assert r"NIID \| bn" in text


def test_an_upper_bound_by_another_label_does_not_compete_either(means, fake):
    lines = (*means.lines[:2], replace(means.lines[2], label="Oracle + BBN (upper bound)"))
    runs = {("Oracle + BBN (upper bound)", "IID"): (fake(rounds=3, aggregator="oracle"),)}
    runs |= {("FedTSA", "IID"): (fake(rounds=3, aggregator="fedtsa"),)}
    table = replace(means, lines=lines, runs=runs)
    assert table.best(0) == {"FedTSA"}
    assert "**80.00**" not in table.markdown()


def test_what_ends_below_doing_nothing_is_said(means, domains, fake):
    first, second = (line.label for line in means.lines[:2])
    low, high = (replace(means.lines[0].entries[0], ours=(value,)) for value in (50.0, 60.0))
    lines = tuple(Line(label, (entry,)) for label, entry in ((first, high), (second, low)))
    runs = {(first, "x"): (fake(adapter="none"),), (second, "x"): (fake(),)}
    table = replace(means, columns=("x",), lines=lines, runs=runs)
    assert table.warnings() == [f"{second} is 10.0 points below doing nothing on x."]
    assert replace(table, metric="miou").warnings() == [f"{second} is 10.0 points of mIoU below doing nothing on x."]
    assert replace(table, metric="forgetting").warnings() == []
    assert replace(table, runs={}).warnings() == []


@pytest.mark.parametrize("metric", ["forgetting", "seconds"])
def test_of_what_is_lost_less_is_better(means, metric):
    assert means.best(0) == {"FedTSA"}
    assert replace(means, metric=metric).best(0) == {"FedAvg"}


def test_domains_have_three_lines_a_method(domains):
    head, body = domains.grid()
    assert head == ["method", "fog", "snow", "mean"]
    assert body == [
        ["FedAvg", "60.00", "70.00", "65.00"],
        ["paper", "50.00", "75.00", "-"],
        ["difference", "+10.00", "-5.00", "-"],
        ["FedTSA", "61.00", "69.00", "65.00"],
    ]


def test_reasons_are_gathered(means):
    assert means.missing() == {"ValueError: no": ["FedTSA (in IID)"]}
    assert means.reasons() == ["FedTSA (in IID): ValueError: no"]


def test_rows_that_lack_the_same_columns_are_told_together(means):
    here, gone = Entry((1.0,)), Entry(reason="lost")
    lines = [Line(name, (here, gone)) for name in "ab"] + [Line("c, d", (gone, gone))]
    assert replace(means, lines=tuple(lines)).reasons() == ["a; b (in IID); c, d: lost"]


def test_text_takes_numbers_from_the_table(means):
    assert means.filled() == "We get 70.00 and {nobody | IID}."


def test_csv_has_every_number(means, domains):
    rows = list(csv.DictReader(io.StringIO(csv_of([means, domains]))))
    assert len(rows) == 6 + 6
    assert (rows[0]["mean"], rows[0]["paper"], rows[0]["seeds"]) == ("61.0", "61.5", "2")
    assert rows[3]["reason"] == "ValueError: no"
    assert rows[3]["mean"] == ""


def test_csv_tells_the_seconds_of_a_run(means, domains):
    """Mean over seeds of the cell; all domains of a row are of one run."""
    took = {("FedAvg", "IID"): (SimpleNamespace(seconds=2.0), SimpleNamespace(seconds=3.0))}
    of_one_run = {("FedTSA", "NIID"): (SimpleNamespace(seconds=4.0),)}
    tables = replace(means, runs=took), replace(domains, runs=of_one_run)
    rows = list(csv.DictReader(io.StringIO(csv_of(tables))))
    told = [row["seconds"] for row in rows]
    assert told == ["", "2.5", "", "", "", ""] + ["", "", ""] + ["4.0"] * 3


def test_the_terminal_turns_long_tables(means, domains):
    told = io.StringIO()
    print_comparison([means, domains], Console(width=20, file=told))
    told = told.getvalue()
    assert "FedTSA (in IID): ValueError: no" in told
    (fog,) = (line for line in told.splitlines() if line.startswith("fog"))
    assert fog.split() == ["fog", "60.00", "50.00", "(+10.00)", "61.00"]
