"""A run's numbers by domain, client and time agree with its counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedctta.results.summaries import by_client, by_domain, by_position, of_run
from fedctta.runs.experiment import run


@pytest.fixture
def record(domains, tiny_module):
    small = {"clients": 4, "slots": 3, "batch": 4, "niid.clusters": 2, "device": "cpu"}
    (found,) = run(dataset=domains, model=tiny_module, aggregator="fedavg", **small)
    return found


def test_the_counts_by_class_are_those_by_slot(record):
    assert record.class_seen.sum() == record.seen.sum()
    assert record.class_right.sum() == record.correct.sum()
    assert record.class_predicted.sum() == record.seen.sum()
    assert (record.class_right <= np.minimum(record.class_seen, record.class_predicted)).all()
    assert (record.class_seen.sum((0, 2)) == record.seen.sum(0)).all()
    assert (record.class_right.sum((0, 2)) == record.correct.sum(0)).all()
    assert record.calibration[:, 0].sum() == record.seen.sum()
    assert record.calibration[:, 2].sum() == record.correct.sum()


def test_accuracies_agree_with_the_record(record):
    assert of_run(record) == pytest.approx(100 * record.accuracy)
    assert by_domain(record) == pytest.approx({k: 100 * v for k, v in record.accuracy_by_domain.items()})
    assert list(by_client(record).values()) == pytest.approx([100 * v for v in record.accuracy_by_client])
    assert of_run(record, "worst_client") == pytest.approx(100 * min(record.accuracy_by_client))
    assert of_run(record, "mean_class_accuracy") == pytest.approx(100 * record.mean_class_accuracy)
    assert of_run(record, "major") == pytest.approx(100 * np.mean(record.major_by_client))


def test_positions_cut_time_evenly(record):
    found = by_position(record)
    assert list(found) == ["1", "2", "3"]
    assert found["2"] == pytest.approx(100 * record.correct[3:6].sum() / record.seen[3:6].sum())
    assert np.mean(list(found.values())) == pytest.approx(100 * record.accuracy)


def test_a_stretch_without_clients_has_no_accuracy(record):
    seen, correct = record.seen.copy(), record.correct.copy()
    seen[3:6] = correct[3:6] = 0
    assert list(by_position(replace(record, seen=seen, correct=correct))) == ["1", "3"]


def test_entropy_lies_between_certain_and_even(record):
    assert 0 <= record.mean_entropy <= np.log(3)
    assert record.entropy.shape == record.seen.shape


def test_seconds_are_those_of_a_client_that_was_there(record):
    domain = record.domain.copy()
    domain[:, 0] = -1
    assert of_run(replace(record, seconds=6.0, domain=domain), "seconds") == pytest.approx(2.0)


def test_forgetting_is_in_points(record):
    domain = np.ones_like(record.domain)
    domain[0] = 0
    retained = np.array([[0.9, np.nan, np.nan], [0.6, 0.5, np.nan]], np.float32)
    found = replace(record, domain=domain, retained=retained, retained_rounds=np.array([0, len(domain) - 1]))
    assert of_run(found, "forgetting") == pytest.approx(30.0, abs=1e-4)
    assert np.isnan(of_run(record, "forgetting"))
