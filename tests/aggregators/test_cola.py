"""CoLA's server: each vector once, the most recent ones, and everyone has them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedctta.adapters.cola import CoLA as Device
from fedctta.aggregators.cola import ROWS, CoLA, collect, empty_set
from fedctta.aggregators.common.mixing import matrix
from fedctta.core.clients import InChunks, by_loop, by_vmap
from fedctta.core.tensors import lay_out
from fedctta.engine.rounds import Federation
from fedctta.errors import UserError
from fedctta.runs.build import check_parts
from fedctta.runs.cache import Cache
from fedctta.runs.settings import single
from fedctta.uploads.late_uploads import Late

EVERYONE = torch.ones(2, dtype=torch.bool)


def send(serials, ages=None, places=3):
    """Signals of clients that have stored vectors with these numbers: number s of client i is the vector 10 i + s."""
    serial = torch.zeros(len(serials), places + 1, dtype=torch.int64)
    age = torch.zeros_like(serial)
    for i, numbers in enumerate(serials):
        serial[i, : len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
        if ages is not None:
            age[i, : len(numbers)] = torch.tensor(ages[i])
    value = (10 * torch.arange(len(serials))[:, None] + serial).float()
    rows = {"vectors": value[..., None].expand(-1, -1, 2), "mean": value[..., None], "var": value[..., None] + 1}
    return {**rows, "serial": serial, "name": value.long() * (serial > 0), "age": age}


def in_set(memory):
    return [name for name in memory["name"].tolist() if name]


def test_new_vectors_are_taken_once():
    signals = send([[1, 2], [1]])
    first = collect(empty_set(signals), signals, EVERYONE)
    assert sorted(in_set(first)) == [1, 2, 11]
    assert first["taken"].tolist() == [2, 1]
    assert first["vectors"][:, 0].tolist() == first["mean"][:, 0].tolist() == first["name"].tolist()
    again = collect(first, signals, EVERYONE)
    assert in_set(again) == in_set(first)


def test_the_most_recent_stay():
    signals = send([[1, 2], [1, 2]], ages=[[9, 0], [5, 4]])
    first = collect(empty_set(signals), signals, EVERYONE)
    assert in_set(first) == [2, 12, 11], "by age; the fourth has no place"
    second = collect(first, send([[3], []]), EVERYONE)
    assert in_set(second) == [3, 2, 12]
    again = collect(second, signals, EVERYONE)  # an old upload once more: what made room does not come back
    assert in_set(again) == [3, 2, 12]
    assert again["taken"].tolist() == [3, 2]


def test_an_absent_client_adds_nothing():
    signals = send([[1], [1]])
    found = collect(empty_set(signals), signals, torch.tensor([True, False]))
    assert in_set(found) == [1]
    assert found["taken"].tolist() == [1, 0]


def test_the_order_of_clients_changes_no_set():
    signals, order = send([[1, 2], [1], [1, 2, 3]], ages=[[6, 2], [3], [5, 4, 1]]), torch.tensor([2, 0, 1])
    everyone = torch.ones(3, dtype=torch.bool)
    one = collect(empty_set(signals), signals, everyone)
    permuted = {name: rows[order] for name, rows in signals.items()}
    other = collect(empty_set(permuted), permuted, everyone)
    assert all(torch.equal(one[name], other[name]) for name in (*ROWS, "when"))
    assert torch.equal(one["taken"][order], other["taken"])


def federate(federation, network, **parameters):
    device = Device(**{"vectors": 4, "lr": 0.05} | parameters)
    return federation(network, adapter=device, aggregator=CoLA(), clients=3, interval=2)


def batches(rounds, clients=3, size=6):
    """Every client in a domain of its own, and a new one after every two rounds."""
    x = torch.rand(rounds, clients, size, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    which = (torch.arange(clients) + torch.arange(rounds)[:, None] // 2) % clients
    return x * (1 + 2 * which).view(rounds, clients, 1, 1, 1, 1)


def play(played: Federation, xs, active=None):
    state, everyone = played.start(), torch.ones(played.server.clients, dtype=torch.bool)
    with torch.no_grad():
        for t, x in enumerate(xs):
            here = everyone if active is None or (t + 1) % played.interval else active
            state, outcome = played.play(state, t, x[here], here, None)
    return state, outcome


def test_everyone_has_all_vectors_after_an_exchange(federation, tiny_network):
    played = federate(federation, tiny_network, offer=False)
    state, outcome = play(played, batches(4))
    private = state.clients.private
    assert private["kept.serial"].tolist() == 3 * [[5, 0, 0, 0]], "one shift each"
    assert private["taken"].tolist() == [5, 5, 5]
    for name in ROWS:
        rows = private[f"shared.{name}"]
        assert torch.equal(rows, rows[:1].expand_as(rows))
    assert (private["shared.name"][0] > 0).sum() == 3
    stored = {tuple(rows[0].tolist()) for rows in private["kept.vectors"]}
    assert stored == {tuple(row.tolist()) for row in private["shared.vectors"][0][:3]}
    assert torch.equal(matrix(outcome.weights), torch.eye(3)), "no model is mixed"


def test_an_exchange_moves_no_principal(federation, tiny_network):
    played = federate(federation, tiny_network)
    together, _ = play(played, batches(2))
    alone, _ = play(replace(played, interval=9), batches(2))
    assert together.clients.private["taken"].tolist() == [4, 4, 4], "weights of the moment are offered and taken"
    assert alone.clients.private["taken"].tolist() == [0, 0, 0]
    for name, tensor in alone.clients.own.items():
        assert torch.equal(together.clients.own[name], tensor)
    source = lay_out({name: tiny_network.state[name] for name in alone.clients.own})
    for i in range(3):
        vector = lay_out({name: tensor[i] for name, tensor in alone.clients.own.items()}) - source
        assert (together.clients.private["shared.vectors"][0] - vector).abs().amax(1).min() == 0


def test_what_is_offered_is_one_vector(federation, tiny_network):
    state, _ = play(federate(federation, tiny_network, vectors=8, threshold=1e9), batches(6))
    private = state.clients.private
    assert private["taken"].tolist() == [12, 12, 12]
    names = private["shared.name"][0]
    assert (names > 0).sum() == 8, "nine, of which eight have a place"
    assert len(names.unique()) == 8
    assert torch.equal(private["weighed"], private["shared.name"])


def test_an_absent_client_keeps_its_set(federation, tiny_network):
    here = torch.tensor([True, False, True])
    state, _ = play(federate(federation, tiny_network), batches(2), here)
    private = state.clients.private
    assert private["taken"].tolist() == [4, 0, 4]
    assert (private["shared.name"] > 0).sum(1).tolist() == [2, 0, 2]
    later, _ = play(federate(federation, tiny_network, offer=False), batches(4), here)
    assert later.clients.private["taken"].tolist() == [5, 0, 5]
    assert Device(vectors=4)._there({n: t[1] for n, t in later.clients.private.items()}).tolist() == [
        *([True] + 4 * [False]),
        *([True] + 3 * [False]),  # its own vector waits for the next exchange, and counts until then
    ]


def test_followers_use_what_principals_have_learnt(federation, tiny_network):
    played = federate(federation, tiny_network, role="mixed", followers=0.6)
    follows = by_loop(played.adapter._follows)(played.start().clients)
    assert 0 < follows.sum() < 3
    state, _ = play(played, batches(4))
    moved = [(t != tiny_network.state[n]).flatten(1).any(1) for n, t in state.clients.own.items()]
    assert torch.stack(moved).all(), "followers too"
    assert (state.clients.private["taken"] > 0).equal(~follows)


@pytest.mark.parametrize("lift", [by_vmap, InChunks(2)])
def test_lifting_changes_nothing(federation, tiny_network, lift):
    played = federate(federation, tiny_network)
    lifted, looped = (
        play(replace(played, server=replace(played.server, lift=each)), batches(6))[0] for each in (lift, by_loop)
    )
    for name, tensor in looped.clients.own.items():
        torch.testing.assert_close(lifted.clients.own[name], tensor, atol=1e-4, rtol=1e-4)
    assert torch.equal(lifted.clients.private["shared.name"], looped.clients.private["shared.name"])


def test_one_client_is_its_own_fleet(federation, tiny_network):
    played = federation(tiny_network, adapter=Device(vectors=4, lr=0.05, offer=False), aggregator=CoLA(), clients=1)
    alone = federation(tiny_network, adapter=Device(vectors=4, lr=0.05), aggregator="local", clients=1)
    together, _ = play(played, batches(6, clients=3)[:, :1])
    own, _ = play(alone, batches(6, clients=3)[:, :1])
    assert together.clients.private["taken"] == 9
    for name, tensor in own.clients.own.items():
        torch.testing.assert_close(together.clients.own[name], tensor)


def test_late_uploads_arrive_once(federation, tiny_network):
    played = replace(federate(federation, tiny_network), interval=1, stages=(Late(newest=CoLA.cumulative),))
    state, everyone = played.start(), torch.ones(3, dtype=torch.bool)
    with torch.no_grad():
        for t, delay in enumerate([[0, 1, 0], [0, 1, 0], [0, 0, 0]]):
            state, _ = played.play(state, t, batches(6)[t], everyone, None, delay=torch.tensor(delay))
            if t == 1:
                assert state.memory["taken"].tolist() == [4, 2, 4]
                assert state.clients.private["taken"].tolist() == [4, 0, 4], "who is late receives nothing"
    assert state.memory["taken"].tolist() == state.clients.private["taken"].tolist() == [6, 6, 6]
    assert len(state.memory["name"].unique()) == 4, "no vector twice"


def test_other_clients_are_refused():
    words = {"dataset": "shapes-c", "aggregator": "cola", "slots": 1}
    with pytest.raises(UserError, match="use adapter=cola, or another aggregator"):
        check_parts(single(words | {"adapter": "tent"}), torch.device("cpu"), Cache())
