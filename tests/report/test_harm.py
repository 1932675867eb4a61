"""What ends below doing nothing is said, once per column, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest

from fedctta.report.harm import describe_harm
from fedctta.report.table import Cell, Row, Table

CELL = Cell(*[50.0, *[0.0] * (len(Cell.__dataclass_fields__) - 3)])


def table(**rows):
    """Give a table of means by label, one per column; None is a method that was not run there."""
    columns = ("niid", "iid")[: len(next(iter(rows.values())))]
    cells = {k: tuple(None if m is None else replace(CELL, mean=m) for m in means) for k, means in rows.items()}
    return Table(columns, tuple(Row(label.replace("_", "-"), row) for label, row in cells.items()))


def test_methods_below_doing_nothing_are_named_with_the_points():
    shown = table(No_Adapt=(60.0, 70.0), FedAvg=(57.1, 70.0), FedCTTA=(66.0, 58.0))
    assert list(describe_harm(shown)) == [
        "FedAvg is 2.9 points below doing nothing on niid.",
        "FedCTTA is 12.0 points below doing nothing on iid.",
    ]
    assert shown.markdown().endswith("FedCTTA is 12.0 points below doing nothing on iid.\n")


@pytest.mark.parametrize(
    "rows",
    [
        {"FedAvg": (57.1,), "FedCTTA": (66.0,)},
        {"No_Adapt": (None,), "FedAvg": (1.0,)},
        {"No_Adapt": (nan,), "FedAvg": (nan,)},
        {"No_Adapt": (60.0,), "FedAvg": (59.96,)},
    ],
)
def test_without_doing_nothing_or_a_difference_nothing_is_said(rows):
    assert list(describe_harm(table(**rows))) == []
