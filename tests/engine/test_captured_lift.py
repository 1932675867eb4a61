"""Lifted methods as graphs: the same results, and only where that is certain. On a CPU a graph is a call by rote."""

from __future__ import annotations

import logging
from functools import partial

import pytest
import torch
from torch.utils._pytree import tree_leaves

from fedctta.core.clients import Client, by_vmap
from fedctta.engine import captured_lift
from fedctta.engine.captured_lift import WARM, CapturedLift

CPU = torch.device("cpu")


class Method:
    """A method of a client, which counts its calls."""

    def __init__(self):
        self.calls = 0

    def move(self, by, client, x):
        self.calls += 1
        return client._replace(own={"a": client.own["a"] + by["b"] * x}), x.sum()


class Rote:
    """A graph: the same function on the same tensors, its results written over the former ones."""

    def __init__(self, function, spoilt=0.0):
        self.function, self.results, self.spoilt, self.replays = function, function(), spoilt, 0

    def replay(self):
        self.replays += 1
        for old, new in zip(tree_leaves(self.results), tree_leaves(self.function()), strict=True):
            old.copy_(new + self.spoilt)


@pytest.fixture
def graphs(monkeypatch):
    """Record by rote; return the graphs."""
    made = []

    def record(self, function):
        made.append(Rote(function))
        return made[-1], made[-1].results

    monkeypatch.setattr(captured_lift._Recorder, "record", record)
    return made


def call(lift, method, by, clients, seed=0):
    x = torch.rand(clients, 3, generator=torch.Generator().manual_seed(seed))
    client = Client({"a": torch.full((clients, 3), float(seed))}, {"key": torch.arange(clients)})
    found, total = lift(partial(method.move, by))(client, x)
    torch.testing.assert_close(found.own["a"], client.own["a"] + by["b"] * x)
    assert torch.equal(found.private["key"], client.private["key"])
    torch.testing.assert_close(total, x.sum(1))
    return found


def test_a_method_that_is_called_again_becomes_a_graph(graphs):
    lift, method, by = CapturedLift(by_vmap, CPU), Method(), {"b": torch.tensor(2.0)}
    for seed in range(WARM):
        call(lift, method, by, 4, seed)
    assert lift.graphs == 0
    first = call(lift, method, by, 4, 7)
    assert lift.graphs == 1
    kept = first.own["a"].clone()
    call(lift, method, by, 4, 8)
    assert torch.equal(first.own["a"], kept)  # a later replay does not write over it
    assert graphs[0].replays == 3  # the proof, and two calls


def test_every_number_of_clients_and_every_owner_has_a_graph(graphs):
    lift, by = CapturedLift(by_vmap, CPU), {"b": torch.tensor(2.0)}
    one, other = Method(), Method()
    for _ in range(WARM + 1):
        for method, clients in ((one, 2), (one, 5), (other, 2)):
            call(lift, method, by, clients)
    assert lift.graphs == 3


def test_tensors_that_come_in_another_order_have_a_graph_of_their_own(graphs):
    """A server may hand tensors back in another order than a client has them at first."""

    class Sum:
        def adapt(self, client, x):
            return client._replace(own={name: tensor + x for name, tensor in client.own.items()})

    lift, method, x = CapturedLift(by_vmap, CPU), Sum(), torch.ones(4)
    for names in (["a", "b"], ["b", "a"]):
        client = Client({name: torch.full((4,), float(ord(name))) for name in names})
        for _ in range(WARM + 2):
            found = lift(method.adapt)(client, x).own
            assert {name: tensor[0].item() for name, tensor in found.items()} == {"a": 98, "b": 99}
    assert [graph.replays for graph in graphs] == [3, 3]


def test_closures_are_lifted_as_ever(graphs):
    lift = CapturedLift(by_vmap, CPU)
    for number in range(WARM + 2):
        assert lift(lambda x, number=number: x + number)(torch.zeros(2)).tolist() == [number] * 2
    assert lift.graphs == 0


@pytest.mark.parametrize(
    ("fault", "reason"), [("impossible", "operation not permitted"), ("wrong", "something else than a call")]
)
def test_what_cannot_be_captured_or_gives_something_else_is_not_replayed(fault, reason, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG, captured_lift.__name__)

    def record(self, function):
        if fault == "impossible":
            raise RuntimeError("operation not permitted when stream is capturing")
        graph = Rote(function, spoilt=1.0)
        return graph, graph.results

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(captured_lift._Recorder, "record", record)
    lift, method, by = CapturedLift(by_vmap, CPU), Method(), {"b": torch.tensor(2.0)}
    for seed in range(WARM + 3):
        call(lift, method, by, 4, seed)
    assert lift.graphs == 0
    assert len(caplog.messages) == 1
    assert "Method.move is not captured" in caplog.text
    assert reason in caplog.text


def test_large_tensors_are_not_copied(graphs, monkeypatch):
    monkeypatch.setattr(captured_lift, "SHARE", 0.0)
    lift, method, by = CapturedLift(by_vmap, CPU), Method(), {"b": torch.tensor(2.0)}
    for seed in range(WARM + 3):
        call(lift, method, by, 4, seed)
    assert not graphs


def test_there_are_only_so_many_graphs(graphs, monkeypatch):
    monkeypatch.setattr(captured_lift, "MOST", 1)
    lift, method, by = CapturedLift(by_vmap, CPU), Method(), {"b": torch.tensor(2.0)}
    for clients in (2, 3):
        for seed in range(WARM + 2):
            call(lift, method, by, clients, seed)
    assert lift.graphs == 1


def test_a_method_that_computes_nothing_becomes_no_graph(graphs):
    class Idle:
        def signal(self, client, x):
            return {}

        def adapt(self, client, x):
            return client

    lift, idle, client = CapturedLift(by_vmap, CPU), Idle(), Client({"a": torch.ones(4, 3)})
    for _ in range(WARM + 2):
        assert lift(idle.adapt)(client, torch.zeros(4)).own["a"].tolist() == [[1.0] * 3] * 4
        assert lift(idle.signal)(client, torch.zeros(4)) == {}
    assert graphs == []
