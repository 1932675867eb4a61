"""The measurements as text."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from fedctta.bench.measure import Skipped
from fedctta.bench.table import grids, notes, print_rows, skipped


def test_the_table_has_times_ratios_speed_and_memory(plan, rows):
    (head, body), (other, costs) = grids(rows, plan.ways).values()
    line = dict(zip(head, body[1], strict=True))
    assert line["clients"] == "200"
    assert line["b ours"] == "22.0"
    assert (line["b/a"], line["c/b"], line["d/b"]) == ("2.00", "3.00", "-")
    assert line["d published way"] == "skipped"
    line = dict(zip(other, costs[0], strict=True))
    assert (line["b images/s"], line["b MB"], line["d MB"]) == ("9,091", "110", "-")


def test_ways_that_are_not_asked_for_have_no_columns(rows):
    head = grids(rows, ("b", "d"))["milliseconds per round"][0]
    assert head[4:] == ["b ours", "d published way", "d/b"]


def test_ways_with_the_same_reason_share_a_line(rows):
    row = replace(rows[0], found={"a": Skipped("no room"), "b": Skipped("no room"), "c": Skipped("no time")})
    assert skipped([row]) == [
        "resnet8 bn+fedavg 20 clients, a and b: skipped, no room",
        "resnet8 bn+fedavg 20 clients, c: skipped, no time",
    ]


def test_a_method_that_reviews_is_told(plan, rows):
    cell = replace(rows[0].cell, adapter="recall")
    assert notes(rows) == []
    assert notes([*rows, replace(rows[0], cell=cell)])[0].startswith("recall: rounds in which no client reviews")


def test_a_console_gets_it_all(plan, rows):
    out = io.StringIO()
    print_rows(rows, plan, Console(file=out, width=200))
    assert "b ours" in out.getvalue()
    assert "no data are needed" in out.getvalue()
    assert "skipped, 3 rounds" in out.getvalue()
