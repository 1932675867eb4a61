"""The four ways do every round, pass the images they say, and average alike."""

from __future__ import annotations

import pytest
import torch

from fedctta.bench import ways
from fedctta.bench.cells import PASSES, SIGNALS, Cell
from fedctta.bench.work import Work
from fedctta.engine import lifting

CPU = torch.device("cpu")


def work(adapter="bn", aggregator="fedavg", clients=3, batch=2, rounds=2):
    return Work(Cell("resnet8-w16", adapter, aggregator, clients, batch), rounds, CPU)


@pytest.mark.parametrize("way", ways.WAYS)
@pytest.mark.parametrize(("adapter", "aggregator"), [*((a, "fedctta") for a in PASSES), ("bn", "fedavg")])
def test_a_way_ticks_once_a_round(way, adapter, aggregator):
    ticks = []
    ways.WAYS[way](work(adapter, aggregator), lambda: ticks.append(way))
    assert len(ticks) == 2


@pytest.mark.parametrize("aggregator", SIGNALS)
def test_plain_inference_passes_as_many_images_as_the_cell_says(aggregator):
    job, seen = work("tent", aggregator, clients=3, batch=2), []
    assert len(job.stream) == 2  # made before counting, for making it tries the model on
    job.source.register_forward_pre_hook(lambda model, inputs: seen.append(len(inputs[0])))
    ways.plain(job, lambda: None)
    assert sum(seen) == 2 * job.cell.clients * job.cell.passes


def test_plain_inference_does_not_pass_too_many_at_once(monkeypatch):
    monkeypatch.setattr(ways, "CPU_OWN_WEIGHTS", 4)
    job, seen = work(clients=3, batch=2), []
    job.source.register_forward_pre_hook(lambda model, inputs: seen.append(len(inputs[0])))
    ways.plain(job, lambda: None)
    assert max(seen) == 4


def test_plain_inference_lets_a_trial_of_liftings_have_its_gradients(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path))
    monkeypatch.setattr(lifting, "LONG", 1)
    modes = []
    monkeypatch.setattr(lifting, "_measure", lambda *_: modes.append(torch.is_inference_mode_enabled()) or "loop")
    ways.plain(work("grad"), lambda: None)
    assert modes == [False]


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
