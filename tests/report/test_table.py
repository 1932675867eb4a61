from __future__ import annotations

import csv
import io
from collections.abc import Callable
from math import isnan

import pytest
from rich.console import Console

from fedctta.errors import UserError
from fedctta.report import print_table, results_table
from fedctta.results.records import Record

Fake = Callable[..., Record]


@pytest.fixture
def study(fake: Fake) -> list[Record]:
    """Give three seeds of two methods and one of the upper bound: 1200 images a run."""
    runs = [fake(accuracy=a, seed=s) for s, a in enumerate((0.60, 0.62, 0.64))]
    runs += [fake(accuracy=a, seed=s, aggregator="local") for s, a in enumerate((0.50, 0.50, 0.53))]
    return [*runs, fake(accuracy=0.70, aggregator="oracle")]


def test_mean_and_spread_by_hand(study: list[Record]) -> None:
    local, ours, oracle = results_table(study).rows
    assert [row.label for row in (local, ours, oracle)] == ["Local", "FedCTTA", "Oracle (upper bound)"]
    assert ours.cells[0] is not None
    assert ours.cells[0].mean == pytest.approx(62.0)
    assert ours.cells[0].std == pytest.approx(2.0)  # sqrt((4 + 0 + 4) / 2)
    assert local.cells[0] is not None
    assert local.cells[0].std == pytest.approx(3**0.5)  # deviations -1, -1, 2
    assert oracle.cells[0] is not None
    assert isnan(oracle.cells[0].std)
    assert oracle.cells[0].seeds == 1


def test_published_numbers_stand_beside_ours(study: list[Record]) -> None:
    table = results_table(study, {"fedctta": {"niid": 66.5}, "Local": {"iid": 1.0}})
    local, ours, _ = (row.cells[0] for row in table.rows)
    assert ours is not None
    assert local is not None
    assert (ours.published, ours.difference) == (66.5, pytest.approx(-4.5))
    assert isnan(local.published)
    assert "| FedCTTA | **62.00 ± 2.00** | 66.50 (-4.50) |" in table.markdown()


def test_a_streams_published_number_is_not_given_to_two_columns(fake: Fake) -> None:
    runs = [fake(rounds=3, adapter=a) for a in ("tent", "bn")]
    loose, exact = (results_table(runs, {"FedCTTA": {key: 60}}) for key in ("niid", "niid / tent"))
    assert not loose.has_published(0)
    assert not loose.has_published(1)
    assert exact.has_published(0)
    assert not exact.has_published(1)


def test_a_published_word_is_an_error(fake: Fake) -> None:
    with pytest.raises(UserError, match="write a percentage"):
        results_table([fake(rounds=3)], {"FedCTTA": {"niid": "66.5 ± 0.3"}})


def test_best_is_bold_but_never_the_upper_bound(study: list[Record]) -> None:
    table = results_table(study)
    assert table.best(0) == {"FedCTTA"}
    assert "**70.00**" not in table.markdown()
    assert results_table(study[:3]).best(0) == frozenset()  # alone, nothing is best


def test_costs_are_shown_and_unknown_ones_are_dashes(fake: Fake) -> None:
    first, second = results_table([fake(clients=1, rounds=4, accuracy=0.5)]).markdown().strip().split("\n\n")
    assert first.splitlines()[-1] == "| FedCTTA | 50.00 | 3 MB | 13.5 | - |"
    assert second.splitlines()[0] == "| method | class mean | macro F1 | worst client | ECE |"
    assert second.splitlines()[-1] == "| FedCTTA | 50.00 | 50.00 | 50.00 | 30.00 |"


def test_several_columns_put_costs_in_a_second_table(fake: Fake) -> None:
    text = results_table([fake(rounds=3, stream=s) for s in ("niid", "iid")]).markdown()
    first, second, third = text.strip().split("\n\n")
    assert first.startswith("| method | niid | iid |\n")
    assert third.startswith("| method | column | class mean |")
    assert second.startswith("| method | column | bytes | seconds | same-domain |\n")


def test_csv_has_one_line_a_method_and_column(study: list[Record]) -> None:
    lines = list(csv.DictReader(io.StringIO(results_table(study).csv())))
    assert [line["method"] for line in lines] == ["Local", "FedCTTA", "Oracle (upper bound)"]
    assert float(lines[1]["mean"]) == pytest.approx(62.0)
    assert (lines[2]["std"], lines[1]["published"]) == ("", "")


def test_the_terminal_shows_markup_in_names_as_it_is(fake: Fake) -> None:
    out = io.StringIO()
    print_table(results_table([fake(rounds=3, aggregator="[red]x[/red]")]), Console(file=out, width=120))
    assert "[red]x[/red]" in out.getvalue()


def test_a_bar_in_a_name_does_not_break_markdown(fake: Fake) -> None:
    assert "a\\|b" in results_table([fake(rounds=3, aggregator="a|b")]).markdown()
