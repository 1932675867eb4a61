"""The simulator on Flower gives what ours gives; here without ray, in one process."""

from __future__ import annotations

import importlib.util

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict

from fedctta.engine.simulation import simulate
from fedctta.errors import UserError
from fedctta.fleet.simulation import engine
from fedctta.fleet.simulation.engine import check, run_on_ray, simulate_on_flower
from fedctta.fleet.simulation.grid import InProcessGrid
from fedctta.fleet.simulation.simulated import open_stream
from fedctta.runs.build import choose_parts, federate
from fedctta.runs.cache import Cache
from fedctta.runs.experiment import run
from fedctta.runs.settings import single

# more than ten clients: their names must sort as their numbers do
WORDS = {"dataset": "shapes-c", "clients": 12, "slots": 1, "batch": 5, "domains": "fog+contrast", "niid.clusters": 2}


def in_process(server, client, nodes):
    """Both apps without an engine: a context a node, as Flower keeps one."""
    contexts = {k: Context(1, k, {"partition-id": k, "num-partitions": nodes}, RecordDict(), {}) for k in range(nodes)}
    answers = {k + 7: lambda message, k=k: client(message, contexts[k]) for k in range(nodes)}
    server(InProcessGrid(answers), Context(1, 0, {}, RecordDict(), {}))


@pytest.mark.parametrize(("adapter", "aggregator"), [("bn", "fedctta"), ("bpa", "ugsa"), ("rotta", "fedtsa")])
def test_it_is_the_simulator(adapter, aggregator):
    experiment = single({**WORDS, "adapter": adapter, "aggregator": aggregator, "fedtsa.epochs": 5})
    parts = choose_parts(experiment, torch.device("cpu"), Cache())
    stream = parts.stream
    expected, rounds = simulate(federate(experiment, parts), stream), []
    found = simulate_on_flower(experiment, stream, on_round=lambda t, _: rounds.append(t), run=in_process)
    assert rounds == list(range(len(stream)))
    assert torch.equal(found.correct, expected.correct)
    torch.testing.assert_close(found.matrices, expected.matrices, atol=1e-4, rtol=0)
    torch.testing.assert_close(found.entropy, expected.entropy, atol=1e-4, rtol=0)
    assert (found.bytes >= expected.bytes).all()  # headers come on top


def test_it_is_asked_for_by_its_name(monkeypatch):
    monkeypatch.setattr(engine, "run_on_ray", in_process)
    ours, theirs = (run(**{**WORDS, "clients": 4, "engine": name}).records[0] for name in ("fedctta", "flower"))
    assert theirs.settings["engine"] == "flower"
    assert (ours.correct == theirs.correct).all()


def test_a_client_that_fails_ends_the_run():
    experiment = single(WORDS)
    stream = open_stream(experiment)

    def broken(server, client, nodes):
        def answer(message):
            raise RuntimeError("out of luck")

        server(InProcessGrid(dict.fromkeys(range(nodes), answer)), Context(1, 0, {}, RecordDict(), {}))

    with pytest.raises(UserError, match="out of luck"):
        simulate_on_flower(experiment, stream, run=broken)


@pytest.mark.parametrize(
    "words",
    [
        *({"interval": 2}, {"predict": "before"}, {"stragglers": 0.5}, {"liars": 1}, {"noise": 0.1}),
        *({"stream": "churn"}, {"adapter": "recall", "aggregator": "recall"}),
    ],
)
def test_what_it_cannot_do_is_told(words):
    experiment = single({**WORDS, **words})
    stream = open_stream(experiment)
    with pytest.raises(UserError, match="engine=flower"):
        check(experiment, stream, objects=False)


def test_without_ray_it_says_what_to_install(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(engine, "find_spec", lambda name: None if name == "ray" else real(name))
    with pytest.raises(UserError, match="flower-simulation"):
        run_on_ray(None, None, 1)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")
def test_on_ray_it_is_the_simulator():
    ours, theirs = (run(**{**WORDS, "engine": name}).records[0] for name in ("fedctta", "flower"))
    assert (ours.correct == theirs.correct).all()
