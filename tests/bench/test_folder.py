"""Tables, figure and files from measurements that are made up."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from fedctta.bench import print_rows, write
from fedctta.bench.cells import make_plan
from fedctta.bench.figure import plot
from fedctta.bench.measure import Row, Skipped, Timing
from fedctta.bench.table import grids, markdown


@pytest.fixture
def plan():
    return make_plan(device="cpu", models="resnet8", adapters="bn,tent", aggregators="fedavg", clients="20,200")


@pytest.fixture
def rows(plan):
    return [
        Row(
            cell,
            {
                "a": Timing((0.010, 0.011, 0.012), 100),
                "b": Timing((0.022, 0.020, 0.030), 110),
                "c": Timing((0.066, 0.060, 0.070), 120),
                "d": Skipped("3 rounds would take about 99 s, and 60 s are left"),
            },
        )
        for cell in plan.cells
    ]


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


def test_files_are_written(plan, rows, tmp_path):
    page = write(rows, plan, tmp_path)
    text = page.read_text()
    assert text == markdown(rows, plan)
    assert "| resnet8 | bn | fedavg | 20 | 11.0 | 22.0 | 66.0 | skipped | 2.00 | 3.00 | - |" in text
    assert "- resnet8 bn+fedavg 20 clients, d: skipped, 3 rounds would take about 99 s" in text
    assert "random" in text
    kept = json.loads((tmp_path / "bench.json").read_text())
    cell = kept["cells"][0]
    assert cell["ways"]["b"]["rounds_ms"] == pytest.approx([22, 20, 30])
    assert cell["ratios"] == pytest.approx({"b/a": 2, "c/b": 3})
    assert cell["ways"]["d"]["skipped"].startswith("3 rounds")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_measured_yet_is_written_too(plan, tmp_path):
    write([], plan, tmp_path)
    assert json.loads((tmp_path / "bench.json").read_text())["cells"] == []


def test_the_figure_has_a_panel_a_method_and_a_line_a_way_measured(plan, rows):
    axes = plot(rows, plan.ways).axes
    assert len(axes) == 2
    assert sum(len(line.get_xdata()) > 0 for line in axes[0].lines) == 3
    assert list(axes[0].lines[1].get_ydata()) == pytest.approx([22, 22])


def test_a_console_gets_it_all(plan, rows):
    out = io.StringIO()
    print_rows(rows, plan, Console(file=out, width=200))
    assert "b ours" in out.getvalue()
    assert "no data are needed" in out.getvalue()
    assert "skipped, 3 rounds" in out.getvalue()
