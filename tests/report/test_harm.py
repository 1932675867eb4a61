"""What ends below doing nothing is said, once per column, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest

from fedctta.report.harm import Harm
from fedctta.report.table import Cell, Row, Table

CELL = Cell(*[50.0, *[0.0] * (len(Cell.__dataclass_fields__) - 3)])


def table(**rows):
    """Give a table of means by label, one per column; None is a method that was not run there."""
    columns = ("niid", "iid")[: len(next(iter(rows.values())))]
    cells = {k: tuple(None if m is None else replace(CELL, mean=m) for m in means) for k, means in rows.items()}
    return Table(columns, tuple(Row(label.replace("_", "-"), row) for label, row in cells.items()))


def test_methods_below_doing_nothing_are_named_with_the_points():
    shown = table(No_Adapt=(60.0, 70.0), FedAvg=(57.1, 70.0), FedCTTA=(66.0, 58.0))
    assert shown.warnings() == [
        "FedAvg is 2.9 points below doing nothing on niid.",
        "FedCTTA is 12.0 points below doing nothing on iid.",
    ]
    assert shown.harm[1] == Harm("FedCTTA", "iid", 12.0)
    assert shown.markdown().endswith("FedCTTA is 12.0 points below doing nothing on iid.\n")
    assert "| FedAvg | 57.10 ± 0.00 ▼ |" in shown.markdown()


def test_a_method_that_is_below_everywhere_is_one_sentence():
    shown = table(No_Adapt=(60.0, 70.0), FedAvg=(57.1, 58.0))
    assert shown.warnings() == ["FedAvg is 2.9 points below doing nothing on niid, 12.0 on iid."]


def test_segmentation_is_judged_by_its_miou():
    cells = (replace(CELL, mean=90.0, miou=40.0), replace(CELL, mean=95.0, miou=38.0))
    shown = Table(("niid",), (Row("No-Adapt", cells[:1]), Row("FedAvg", cells[1:])))
    assert shown.warnings() == ["FedAvg is 2.0 points of mIoU below doing nothing on niid."]


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
    assert table(**rows).harm == ()
