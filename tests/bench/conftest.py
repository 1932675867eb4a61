"""Measurements that are made up."""

from __future__ import annotations

import pytest

from fedctta.bench.cells import make_plan
from fedctta.bench.measure import Row, Skipped, Timing


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
