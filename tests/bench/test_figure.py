"""The measurements as a figure."""

from __future__ import annotations

import pytest

from fedctta.bench.figure import plot


def test_the_figure_has_a_panel_a_method_and_a_line_a_way_measured(plan, rows):
    axes = plot(rows, plan.ways).axes
    assert len(axes) == 2
    assert sum(len(line.get_xdata()) > 0 for line in axes[0].lines) == 3
    assert list(axes[0].lines[1].get_ydata()) == pytest.approx([22, 22])
