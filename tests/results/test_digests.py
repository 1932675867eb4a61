"""A digest has the numbers of its record, by every name and part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedctta.results.digests import METRICS, digest
from fedctta.results.metrics import SCORES
from fedctta.results.summaries import by_client, by_domain, by_position, of_run
from fedctta.runs.experiment import run


@pytest.fixture
def record(domains, tiny_module):
    small = {"clients": 4, "slots": 3, "batch": 4, "niid.clusters": 2, "device": "cpu"}
    (found,) = run(dataset=domains, model=tiny_module, aggregator="fedavg", **small)
    return found


@pytest.mark.parametrize("metric", SCORES)
def test_the_numbers_are_those_of_the_record(record, metric):
    found = digest(record)
    assert found.of_run(metric) == pytest.approx(of_run(record, metric), rel=1e-6)
    assert found.split("domain", metric) == pytest.approx(by_domain(record, metric), rel=1e-6)
    assert found.split("client", metric) == pytest.approx(by_client(record, metric), rel=1e-6)


def test_positions_forgetting_and_costs(record):
    found = digest(replace(record, seconds=8.0))
    assert found.split("position") == pytest.approx(by_position(record), rel=1e-6)
    assert np.isnan(found.of_run("forgetting"))
    assert found.seconds == 8.0
    assert found.of_run("seconds") == 2.0  # four clients
    assert found.rounds == len(record.seen)
    assert found.classes == pytest.approx([100 * value for value in record.class_accuracy], rel=1e-6, nan_ok=True)


def test_numbers_are_what_float32_holds(record):
    found = digest(record)
    whole = {name: value for name, value in found.whole.items() if name != "seconds"}
    for numbers in (whole, *(found.parts["domain"][metric] for metric in METRICS)):
        assert all(float(np.float32(value)) == value for value in numbers.values() if value == value)
