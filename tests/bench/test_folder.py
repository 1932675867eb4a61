"""Files from measurements that are made up."""

from __future__ import annotations

import json

import pytest

from fedctta.bench import Cell, Row, Skipped, write
from fedctta.bench.table import markdown


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


def test_a_cell_of_which_nothing_was_measured_has_no_passes(plan, tmp_path):
    write([Row(Cell("resnet8", "atp", "fedavg", 2, 2), {"a": Skipped("no rates of atp")})], plan, tmp_path, False)
    (cell,) = json.loads((tmp_path / "bench.json").read_text())["cells"]
    assert "image_passes_a_client" not in cell
