from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fedctta.report.columns import arrange
from fedctta.report.payload import MATRIX_BYTES, payload
from fedctta.results.records import Record

Fake = Callable[..., Record]


def data_of(*records: Record) -> Any:
    return payload(arrange(records))


def test_a_round_in_which_nobody_came_is_null(fake: Fake) -> None:
    curve = data_of(fake(rounds=30, absent=True))["columns"][0]["curves"]["FedCTTA"]
    assert [k for k, value in enumerate(curve) if value is None] == [15]


def test_weights_survive_the_packing(fake: Fake) -> None:
    run = fake(rounds=12, clients=6)
    packed = data_of(run)["matrices"][0]
    bytes_ = np.frombuffer(base64.b64decode(packed["weights"]["bytes"]), np.uint8).reshape(12, 6, 6)
    weights = packed["weights"]["top"] * (bytes_ / 255) ** 2
    assert np.abs(weights - run.collaboration).max() < packed["weights"]["top"] / 250
    met = np.frombuffer(base64.b64decode(packed["met"]), np.uint8).reshape(12, 6)
    assert (met == run.domain).all()


def test_the_mean_leaves_out_clients_that_are_away(fake: Fake) -> None:
    run = fake(rounds=4, clients=3)
    domain = run.domain.copy()
    domain[1:, 1], domain[:, 2] = -1, -1
    mean = data_of(replace(run, domain=domain))["matrices"][0]["mean"]
    assert mean["there"] == [True, True, False]
    bytes_ = np.frombuffer(base64.b64decode(mean["bytes"]), np.uint8).reshape(3, 3)
    weights = mean["top"] * (bytes_ / 255) ** 2
    assert np.abs(weights[1] - run.collaboration[0, 1]).max() < mean["top"] / 100
    assert not weights[2].any()


def test_the_page_knows_what_lies_on_what(fake: Fake) -> None:
    runs = [fake(aggregator=name, accuracy=0.7) for name in ("fedavg", "oracle")]
    column = data_of(*runs)["columns"][0]
    assert column["together"] == [["FedAvg", "Oracle (upper bound)"]]
    assert column["coincidence"] == "FedAvg = Oracle (upper bound)"
    assert all(a != b for a, b in zip(*column["aside"].values(), strict=True))


def test_many_clients_get_fewer_rounds_and_too_many_none(fake: Fake) -> None:
    some = data_of(fake(rounds=60, clients=150))["matrices"]
    assert 10 < len(some[0]["rounds"]) <= MATRIX_BYTES // 150**2
    crowd = data_of(fake(rounds=2, clients=700))
    assert crowd["matrices"] == []
    assert crowd["leftOut"] == 1
