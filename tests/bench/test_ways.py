"""The ways do every round, and average alike."""

from __future__ import annotations

import pytest
import torch

from fedctta.bench import ways
from fedctta.bench.cells import CLIENTS, Cell
from fedctta.bench.work import Work

CPU = torch.device("cpu")


def work(adapter="bn", aggregator="fedavg", clients=3, batch=2, rounds=2):
    return Work(Cell("resnet8-w16", adapter, aggregator, clients, batch), rounds, CPU)


def test_loops_are_written_for_the_methods_that_the_plan_says():
    assert (*ways.CLIENTS,) == CLIENTS


@pytest.mark.parametrize("way", ways.WAYS)
@pytest.mark.parametrize(("adapter", "aggregator"), [*((a, "fedctta") for a in CLIENTS), ("bn", "fedavg")])
def test_a_way_ticks_once_a_round(way, adapter, aggregator):
    ticks = []
    ways.WAYS[way](work(adapter, aggregator), lambda: ticks.append(way))
    assert len(ticks) == 2


def test_both_loops_average_alike():
    job = work("bn")
    x, _ = job.read(0)
    clients = [ways.CLIENTS["bn"](job.source) for _ in x]
    for client, batch in zip(clients, x, strict=True):
        client.adapt(batch)
    weights = torch.rand(3, 3).softmax(1)
    states = [{name: tensor.clone() for name, tensor in client.upload().items()} for client in clients]
    expected = [ways.average(states, row) for row in weights.tolist()]
    ways._mix(clients, weights)
    for client, state in zip(clients, expected, strict=True):
        torch.testing.assert_close(client.upload(), state)
