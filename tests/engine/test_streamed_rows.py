"""Rows of clients that are streamed through give what all clients at once give, and leave the server's memory alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils._pytree import tree_leaves

from fedctta.core.clients import Client, InChunks, by_loop
from fedctta.core.network import Network
from fedctta.engine import captured_lift, simulation
from fedctta.engine.captured_lift import CapturedLift
from fedctta.engine.gpu_capacity import HELD, MOST, are_too_many
from fedctta.engine.rounds import State, flatten
from fedctta.engine.simulation import simulate
from fedctta.engine.streamed_rows import keep_apart, stream_rows
from fedctta.errors import UserError
from fedctta.models.inputs import read_batch
from fedctta.streams import build
from fedctta.streams.clusters import NIID


@pytest.fixture
def compare(domains, witness, monkeypatch):
    """Play three clients, two at a time and one left over, in nine rounds: as ever, and in place."""
    stream = build(NIID(clusters=2), domains, clients=3, slots=3, batch=4, seed=0)

    def play(federation, streamed):
        monkeypatch.setattr(simulation, "are_too_many", lambda clients, memory: streamed)
        last = witness()
        tally = simulate(federation, stream, retention=last, predictions=True)
        return tally, flatten(last.state)

    def both(federation):
        (expected, before), (found, after) = (play(federation, streamed) for streamed in (False, True))
        assert torch.equal(found.classes, expected.classes)
        assert before.keys() == after.keys()
        for name, tensor in before.items():
            torch.testing.assert_close(after[name], tensor, rtol=1e-4, atol=1e-5, msg=name)

    return both


# Several of these remember what they sent, or what was sent to them.
@pytest.mark.parametrize(
    "name",
    ["local", "fedavg", "fedbn", "fedavgm", "fedamp", "ldawa", "pfedgraph", "pfedbbn", "fedctta", "kin", "oracle"],
)
def test_servers_mix_clients_that_were_changed_in_place(name, federation, tiny_network, compare):
    compare(federation(tiny_network, "grad", name, clients=3, lift=InChunks(2)))


@pytest.mark.parametrize("name", ["none", "bn", "tent", "cotta", "bbn", "eata"])
def test_clients_change_in_place(name, federation, tiny_network, compare):
    compare(federation(tiny_network, name, "fedavg", clients=3, lift=InChunks(2)))


@pytest.mark.parametrize(("name", "stays"), [("fedctta", True), ("oracle", True), ("fedavgm", False)])
def test_a_server_that_only_mixes_needs_no_second_copy(name, stays, federation, tiny_network, domains):
    one = stream_rows(federation(tiny_network, "grad", name, clients=3, lift=InChunks(2)))
    slot = build(NIID(clusters=2), domains, clients=3, slots=3, batch=4, seed=0).slot(0)
    before = one.start()
    kernels = {n: t.data_ptr() for n, t in before.clients.own.items() if t.dim() > 2}
    with torch.no_grad():
        everybody, domain = torch.ones(3, dtype=torch.bool), torch.tensor([0, 0, 1])
        after, _ = one.play(before, 0, read_batch(slot.images), everybody, domain)
    assert all((after.clients.own[name].data_ptr() == place) is stays for name, place in kernels.items())


def test_clients_take_the_place_of_those_before():
    clients = Client({"w": torch.arange(5.0)}, {"n": torch.zeros(1).expand(5, 1)})
    place = clients.own["w"].data_ptr()
    step = InChunks(2, in_place=True)(lambda c, x: (Client({"w": c.own["w"] + x}, {"n": c.private["n"] + 1}), 2 * x))
    changed, doubled = step(clients, torch.ones(5))
    assert changed.own["w"].tolist() == [1, 2, 3, 4, 5]
    assert changed.own["w"].data_ptr() == place
    assert changed.private["n"].tolist() == [[1.0]] * 5  # rows that were one and the same memory have their own
    assert doubled.tolist() == [2.0] * 5


def test_results_of_another_form_have_a_place_of_their_own():
    clients = Client({"w": torch.arange(3.0)})
    longer = InChunks(2, in_place=True)(lambda c: Client({"w": torch.stack([c.own["w"], c.own["w"]])}))(clients)
    assert longer.own["w"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert clients.own["w"].tolist() == [0, 1, 2]


def test_clients_of_which_five_copies_do_not_fit_are_too_many():
    clients = Client({"w": torch.zeros(10, 3)}, {"n": torch.zeros(10, 2)})
    limit = HELD * 10 * 5 * 4 / MOST
    assert are_too_many(clients, int(limit) - 1)
    assert not are_too_many(clients, int(limit) + 1)


def test_what_a_server_remembers_is_not_changed_with_the_clients():
    sent = torch.zeros(3)

    def play_in_place(state, t):
        state.clients.own["w"].add_(1)
        return state

    state = keep_apart(play_in_place)(State(Client({"w": sent}), {"sent": sent, "other": torch.ones(1)}), 0)
    assert state.clients.own["w"].tolist() == [1, 1, 1]
    assert state.memory["sent"].tolist() == [0, 0, 0]


def test_rows_are_captured_unless_graphs_are_never_used(federation, tiny_network):
    plain = federation(tiny_network, lift=InChunks(2))
    assert stream_rows(plain).server.lift == InChunks(2, in_place=True)
    captured = stream_rows(replace(plain, graphs="auto"))
    assert isinstance(captured.server.lift.each, CapturedLift)
    assert captured.graphs == "never"  # of whole rounds
    looped = federation(tiny_network, lift=by_loop)
    assert stream_rows(looped) is looped


def test_a_whole_round_as_a_graph_is_refused_in_one_line(federation, tiny_network):
    with pytest.raises(UserError, match="five times what all clients own: use lift=auto"):
        stream_rows(replace(federation(tiny_network, lift=InChunks(2)), graphs="always"))


def test_rows_are_captured_once_for_all_chunks(federation, tiny_network, domains, monkeypatch):
    """On a CPU a graph is the function itself, and its results are written over the former ones."""
    made = []

    class Rote:
        def __init__(self, function):
            self.function, self.results, self.replays = function, function(), 0

        def replay(self):
            self.replays += 1
            for old, new in zip(tree_leaves(self.results), tree_leaves(self.function()), strict=True):
                old.copy_(new)

    def record(self, function):
        made.append(Rote(function))
        return made[-1], made[-1].results

    monkeypatch.setattr(captured_lift._Recorder, "record", record)
    stream = stream_rows(replace(federation(tiny_network, "grad", clients=6, lift=InChunks(2)), graphs="auto"))
    simulate(stream, build(NIID(clusters=2), domains, clients=6, slots=2, batch=4, seed=0))
    assert len(made) == 2  # adapt and predict
    assert all(graph.replays > 10 for graph in made)


@pytest.mark.gpu
@pytest.mark.parametrize(("adapter", "aggregator"), [("grad", "fedavg"), ("grad", "kin"), ("tent", "fedctta")])
def test_rows_that_pass_through_a_graph_give_the_same(adapter, aggregator, federation, tiny_module, compare):
    network = Network(tiny_module, torch.device("cuda"))
    one = federation(network, adapter, aggregator, clients=3, lift=InChunks(2))
    compare(replace(one, graphs="auto"))
