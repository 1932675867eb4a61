"""The round, its bookkeeping, and its place in a stream."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from fedctta.adapters import Adapter, adapters
from fedctta.aggregators import Aggregator
from fedctta.aggregators.common.mixing import matrix
from fedctta.aggregators.fedavg import FedAvg
from fedctta.core.clients import Client
from fedctta.core.network import Network
from fedctta.core.norms import refreshed
from fedctta.engine.rounds import bytes_each, flatten
from fedctta.engine.simulation import simulate
from fedctta.machine import arithmetic
from fedctta.models.inputs import to_input
from fedctta.streams import Stream, build
from fedctta.streams.clusters import NIID
from fedctta.streams.custom import Custom


@pytest.fixture
def stream(domains):
    return build(NIID(clusters=2), domains, clients=4, slots=3, batch=4, seed=0)


def seen_by(stream, t, network):
    slot = stream.slot(t)
    return to_input(slot.images, network.device), torch.from_numpy(slot.labels)


def test_fedavg_predicts_with_the_mean_of_all_statistics(federation, tiny_network, stream):
    """One round by hand: batch statistics of every client, averaged, then used by all."""
    x, labels = seen_by(stream, 0, tiny_network)
    bn = adapters.create("bn")
    with torch.no_grad():
        each = [bn.adapt(tiny_network, bn.init(tiny_network), batch).own for batch in x]
        mean = {name: torch.stack([own[name] for own in each]).mean(0) for name in each[0]}
        expected = [(tiny_network(mean, batch).logits.argmax(1) == y).sum() for batch, y in zip(x, labels, strict=True)]
    tally = simulate(federation(tiny_network), stream)
    assert tally.correct[0].tolist() == [int(hits) for hits in expected]


def test_predicting_before_uses_what_was_received_and_this_batch(federation, tiny_network, stream):
    """Two rounds by hand: the server's answer to a round is seen in the next one's predictions."""
    bn, right = adapters.create("bn", {"momentum": 0.3}), []
    held = [tiny_network.statistics] * 4
    for t in range(2):
        x, labels = seen_by(stream, t, tiny_network)
        with torch.no_grad():
            passes = [tiny_network(own, batch, refreshed(0.3)) for own, batch in zip(held, x, strict=True)]
        right.append([int((p.logits.argmax(1) == y).sum()) for p, y in zip(passes, labels, strict=True)])
        held = [{n: torch.stack([p.statistics[n] for p in passes]).mean(0) for n in held[0]}] * 4
    played = replace(federation(tiny_network), adapter=bn)
    before, after = (simulate(replace(played, predict=when), stream) for when in ("before", "after"))
    assert before.correct[:2].tolist() == right
    assert before.correct.tolist() != after.correct.tolist()
    assert torch.equal(before.matrices, after.matrices)


def test_local_is_every_client_alone(federation, tiny_network, stream):
    together = simulate(federation(tiny_network, aggregator="local"), stream)
    for i in range(4):
        alone = Stream(stream.data, stream.domain[:, [i]], stream.samples[[i]], stream.visit[:, [i]])
        single = simulate(federation(tiny_network, aggregator="local", clients=1), alone)
        assert single.correct[:, 0].tolist() == together.correct[:, i].tolist()


@pytest.mark.parametrize("adapter", ["bn", "grad"])
@pytest.mark.parametrize("aggregator", ["fedavg", "fedctta", "oracle"])
def test_lifting_does_not_change_a_run(federation, adapter, aggregator, tiny_network, stream):
    vmapped = simulate(federation(tiny_network, adapter, aggregator, lift="vmap"), stream)
    looped = simulate(federation(tiny_network, adapter, aggregator, lift="loop"), stream)
    assert vmapped.correct.tolist() == looped.correct.tolist()
    torch.testing.assert_close(vmapped.matrices, looped.matrices, atol=1e-5, rtol=1e-4)


def test_aggregation_every_few_rounds(federation, tiny_network, stream):
    tally = simulate(federation(tiny_network, interval=4), stream)
    local = simulate(federation(tiny_network, aggregator="local"), stream)
    assert tally.kept_rounds.tolist() == [3, 7]
    alone = [t for t in range(len(stream)) if (t + 1) % 4]
    assert tally.correct[alone].tolist() == local.correct[alone].tolist()


def test_bytes_are_those_of_what_travels(federation, tiny_network, stream):
    floats = 2 * 4  # mean and variance of four channels
    tally = simulate(federation(tiny_network), stream)
    assert tally.bytes.tolist() == [9 * 4 * floats * 4] * 2
    with_signal = simulate(federation(tiny_network, aggregator="fedctta", probe="batch"), stream)
    assert with_signal.bytes.tolist() == [9 * 4 * (floats + 3) * 4, 9 * 4 * floats * 4]
    assert simulate(federation(tiny_network, aggregator="local"), stream).bytes.tolist() == [0, 0]
    assert simulate(federation(tiny_network, "none"), stream).bytes.tolist() == [0, 0]


def test_bytes_each_counts_one_client():
    assert bytes_each({"a": torch.zeros(5, 2, 3), "b": torch.zeros(5)}) == 28


def test_weight_on_the_own_domain(federation, tiny_network, stream):
    assert simulate(federation(tiny_network, aggregator="oracle"), stream).same_domain_weight() == 1
    assert simulate(federation(tiny_network), stream).same_domain_weight() == pytest.approx(0.5)


class Nosy(Aggregator):
    """Remembers what it was told."""

    name = "nosy"

    def __init__(self):
        self.told = []

    def collaborate(self, server, uploads, memory):
        self.told.append(uploads)
        return torch.eye(len(uploads.active)), memory


def test_only_an_upper_bound_is_told_the_domains(federation, tiny_network, stream):
    nosy = Nosy()
    simulate(federation(tiny_network, aggregator=nosy), stream)
    assert all(uploads.domain is None for uploads in nosy.told)


@pytest.fixture
def sparse(domains, tmp_path):
    """Client 1 is away at first, client 2 leaves early, and in slot 5 nobody is there."""
    plan = tmp_path / "plan.toml"
    plan.write_text(
        '[[group]]\nclients = 1\nvisits = [["d0", 5], ["absent", 1], ["d1", 2]]\n'
        '[[group]]\nclients = 1\nvisits = [["absent", 3], ["d0", 2], ["absent", 1], ["d2", 2]]\n'
        '[[group]]\nclients = 1\nvisits = [["d1", 4]]\n'
    )
    return build(Custom(file=str(plan)), domains, clients=3, slots=2, batch=3, seed=0)


@pytest.mark.parametrize("aggregator", ["local", "fedavg", "fedctta", "oracle"])
@pytest.mark.parametrize("adapter", ["none", "bn", "grad"])
def test_absent_clients_are_left_out_and_keep_their_model(federation, adapter, aggregator, tiny_network, sparse):
    tally = simulate(federation(tiny_network, adapter, aggregator, clients=3), sparse)
    assert (tally.seen() == np.where(sparse.domain < 0, 0, 3)).all()
    assert (tally.correct.numpy() <= tally.seen()).all()
    played = federation(tiny_network, adapter, aggregator, clients=3)
    before = played.start()
    slot = sparse.slot(0)
    active = torch.from_numpy(slot.domain >= 0)
    with torch.no_grad():
        after, outcome = played.play(before, 0, to_input(slot.images), active, torch.from_numpy(slot.domain))
    assert len(outcome.logits) == 2
    for name, tensor in before.clients.own.items():
        assert torch.equal(after.clients.own[name][1], tensor[1])
    if outcome.weights is not None:
        assert matrix(outcome.weights)[1].tolist() == [0, 1, 0]
        torch.testing.assert_close(matrix(outcome.weights).sum(1), torch.ones(3))


@pytest.mark.gpu
@pytest.mark.parametrize("adapter", ["bn", "grad"])
def test_cuda_agrees_with_the_cpu(federation, adapter, tiny_module, stream):
    with arithmetic():
        there = simulate(federation(Network(tiny_module, "cuda"), adapter, "fedctta"), stream)
        here = simulate(federation(Network(tiny_module, "cpu"), adapter, "fedctta"), stream)
    torch.testing.assert_close(there.matrices.cpu(), here.matrices, atol=1e-4, rtol=1e-3)
    assert (there.correct.cpu() - here.correct).abs().sum() <= 1


class Witness(FedAvg):
    """Notes whether matrix products are rounded while the server works."""

    rounded: ClassVar[list[bool]] = []

    def collaborate(self, server, uploads, memory):
        self.rounded.append(torch.backends.cuda.matmul.allow_tf32)
        return super().collaborate(server, uploads, memory)

    def step(self, server, uploads, mixed, receive, memory):
        self.rounded.append(torch.backends.cuda.matmul.allow_tf32)
        return super().step(server, uploads, mixed, receive, memory)


def test_the_server_does_not_round(federation, tiny_network, stream):
    with arithmetic("tf32"):
        simulate(federation(tiny_network, aggregator=Witness()), stream)
    assert not any(Witness.rounded)
    assert len(Witness.rounded) == 2 * len(stream)


@pytest.mark.gpu
def test_models_that_learn_nothing_stay_as_they_are(federation, tiny_module, stream):
    """Averaged in every round, weights must not drift by rounding, in tf32 either."""
    one = federation(Network(tiny_module, "cuda"), "grad", "fedavg")
    one = replace(one, adapter=replace(one.adapter, lr=0.0))
    state = one.start()
    x = torch.rand(4, 4, 3, 8, 8, device="cuda")
    everybody = torch.ones(4, dtype=torch.bool, device="cuda")
    with arithmetic("tf32"), torch.no_grad():
        for t in range(100):
            state, _ = one.play(state, t, x, everybody, None)
    for name, tensor in one.network.parameters.items():
        torch.testing.assert_close(state.clients.own[name], tensor.expand(4, *tensor.shape), atol=1e-6, rtol=1e-5)


@pytest.mark.gpu
def test_fedtsa_ahead_is_fedtsa_round_by_round(federation, tiny_module, stream):
    with arithmetic():
        one = federation(Network(tiny_module, "cuda"), "bn", "fedtsa")
        ahead, as_ever = simulate(one, stream), simulate(replace(one, ahead=False), stream)
    torch.testing.assert_close(ahead.matrices, as_ever.matrices, atol=1e-4, rtol=1e-3)
    assert (ahead.correct - as_ever.correct).abs().sum() <= 1


@dataclass(frozen=True)
class Counting(Adapter):
    """Never waits: counts batches, reviews every second one, and predicts the class that the server has sent."""

    name: ClassVar[str] = "counting"
    waits: ClassVar[bool] = False
    reviews: ClassVar[bool] = True

    def init(self, network):
        zero = torch.zeros((), dtype=torch.int64)
        return Client({}, {"batches": zero, "reviewed": zero, "told": zero})

    def adapt_and_predict(self, network, client, x):
        logits = torch.nn.functional.one_hot(client.private["told"], 10).float().expand(len(x), -1)
        return client._replace(private=client.private | {"batches": client.private["batches"] + 1}), logits

    def is_due(self, client):
        return client.private["batches"] % 2 == 0

    def review(self, network, client, x):
        return client._replace(private=client.private | {"reviewed": client.private["reviewed"] + 1})


@dataclass(frozen=True)
class Telling(Aggregator):
    """Tells every client how many batches all of them have seen, mod 10."""

    name: ClassVar[str] = "telling"

    def hands(self, private):
        return {"told": private["told"]}

    def signal(self, network, client, x):
        return {"batches": client.private["batches"]}

    def collaborate(self, server, uploads, memory):
        return torch.eye(len(uploads.active)), memory

    def step(self, server, uploads, mixed, receive, memory):
        return {"told": (uploads.signals["batches"] * uploads.active).sum().expand(len(receive)) % 10}, memory


def test_who_does_not_wait_predicts_in_its_adapting_pass_and_is_handed_private_tensors(
    federation, tiny_network, stream
):
    played = replace(federation(tiny_network), adapter=Counting(), aggregator=Telling(), interval=2)
    state, everybody = played.start(), torch.ones(4, dtype=torch.bool)
    predicted = []
    for t in range(4):
        x, _ = seen_by(stream, t, tiny_network)
        state, outcome = played.play(state, t, x, everybody, None)
        predicted.append(outcome.logits.argmax(-1).unique().tolist())
    assert predicted == [[0], [0], [8], [8]]  # the answer to round 1 counts from round 2 on
    assert state.clients.private["reviewed"].tolist() == [2, 2, 2, 2]
    assert state.clients.private["told"].tolist() == [6, 6, 6, 6]
    assert outcome.bytes_down == 4 * 8


def test_only_clients_that_are_due_review(federation, tiny_network, stream):
    played = replace(federation(tiny_network), adapter=Counting(), aggregator=Telling(), interval=9)
    state = played.start()
    x, _ = seen_by(stream, 0, tiny_network)
    some = torch.tensor([True, False, True, False])
    state, _ = played.play(state, 0, x[some], some, None)
    state, _ = played.play(state, 1, x, torch.ones(4, dtype=torch.bool), None)
    assert state.clients.private["reviewed"].tolist() == [1, 0, 1, 0]


def test_a_round_whose_reviews_all_compute_is_the_round_as_ever(federation, tiny_network, stream):
    """What a captured round does: its halves one after the other, with a mask of those that are due."""
    played = replace(federation(tiny_network, aggregator="recall"), adapter=adapters.create("recall"))
    whole, halves, everybody, masks = played.start(), played.start(), torch.ones(4, dtype=torch.bool), []
    for t in range(len(stream)):
        x, _ = seen_by(stream, t, tiny_network)
        with torch.no_grad():
            whole, expected = played.play(whole, t, x, everybody, None)
            clients, logits = played.begin(halves.clients, x)
            masks.append(played.find_due(clients))
            halves = halves._replace(clients=played.review(clients, x, masks[-1]))
            halves, outcome = played.finish(halves, t, x, everybody, None, logits)
        torch.testing.assert_close(outcome.logits, expected.logits)
        assert outcome[2:] == expected[2:]
    assert masks[0].all()
    assert any(0 < mask.sum() < 4 for mask in masks)
    torch.testing.assert_close(flatten(halves), flatten(whole))


def test_an_absent_client_is_handed_nothing(federation, tiny_network, stream):
    played = replace(federation(tiny_network), adapter=Counting(), aggregator=Telling())
    x, _ = seen_by(stream, 0, tiny_network)
    some = torch.tensor([True, False, True, True])
    state, _ = played.play(played.start(), 0, x[some], some, None)
    assert state.clients.private["told"].tolist() == [3, 0, 3, 3]
