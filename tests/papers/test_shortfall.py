"""What a page lacks is said in words: panels, cells, seeds."""

from __future__ import annotations

import pytest

from fedctta.papers.shortfall import find_missing
from fedctta.papers.tables import Panel, Paper
from fedctta.report.comparison import Comparison

PANELS = tuple(Panel(name, {"c": {}}, {"a": {}, "b": {}}, seeds=3) for name in ("one", "two", "three"))
PAPER = Paper("x", "X", "", PANELS)


def table(*seeds):
    return Comparison("t", ("c",), (), runs={(str(k), "c"): ("run",) * n for k, n in enumerate(seeds)})


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ([table(3, 3), table(3), table(3)], ()),
        ([table(3, 3), table(3)], ("three (no runs)",)),
        ([table(3, 3)], ("two and three (no runs)",)),
        ([table(3, 0), table(3), table(3)], ("1 of 4 cells (in one)",)),
        ([table(3, 0), table(3), table(0)], ("2 of 4 cells",)),
        ([table(1, 1), table(1), table(1)], ("seeds (1 of 3)",)),
        ([table(2, 3), table(1), table(3)], ("seeds (1 to 2 of 3 in 2 of 4 cells)",)),
    ],
)
def test_what_is_missing(tables, told):
    assert find_missing(PAPER, PANELS[: len(tables)], tables) == told


COLUMNS = tuple(Panel(f"bn, {name}", {name: {}}, {"a": {}}, group="bn") for name in "abcd")


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        (4, ()),
        (3, ('"bn, d" (no runs)',)),
        (1, ("3 of 4 tables of bn (no runs)",)),
        (0, ("bn and one (no runs)",)),
    ],
)
def test_of_a_group_it_is_said_how_many_tables_are_missing(shown, told):
    panels = (*COLUMNS[:shown], *(PANELS[:1] if shown else ()))
    tables = [Comparison("t", ("c",), (), runs={("a", "c"): ("run",) * 3}) for _ in panels]
    assert find_missing(Paper("x", "X", "", (*COLUMNS, PANELS[0])), panels, tables) == told
