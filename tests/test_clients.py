"""Stacks of clients, and lifting."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedctta.clients import Client, by_chunked_vmap, by_loop, by_vmap, choose_lift, put, stack, take
from fedctta.network import Network


@given(st.integers(1, 5), st.lists(st.integers(1, 4), max_size=3))
def test_a_stack_repeats_one_client(count, shape):
    client = Client({"a": torch.rand(shape)}, {"b": torch.rand(2)})
    clients = stack(client, count)
    assert clients.own["a"].shape == (count, *shape)
    assert all(torch.equal(row, client.private["b"]) for row in clients.private["b"])


def test_take_and_put_touch_only_those_named():
    clients = Client({"a": torch.arange(4.0)})
    who = torch.tensor([1, 3])
    changed = Client({"a": take(clients, who).own["a"] + 10})
    assert put(clients, who, changed).own["a"].tolist() == [0, 11, 2, 13]
    assert clients.own["a"].tolist() == [0, 1, 2, 3]


def test_loop_and_vmap_lift_alike():
    def step(client, x):
        return Client({"w": client.own["w"] * x.mean()}, {"n": client.private["n"] + 1})

    clients = Client({"w": torch.rand(13, 2)}, {"n": torch.arange(13.0)})
    x = torch.rand(13, 5)
    looped = by_loop(step)(clients, x)
    for lift in (by_vmap, by_chunked_vmap):
        lifted = lift(step)(clients, x)
        torch.testing.assert_close(looped.own["w"], lifted.own["w"])
        assert looped.private["n"].tolist() == lifted.private["n"].tolist()


def test_vmap_goes_in_chunks_on_a_cpu_only_where_clients_own_more_than_norms():
    network = Network(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2)))
    norms = Client(network.statistics)
    everything = Client({**network.parameters, **network.statistics})
    assert choose_lift("auto", network, norms) is by_vmap
    assert choose_lift("auto", network, everything) is by_chunked_vmap
    assert choose_lift("vmap", network, everything) is by_chunked_vmap
    assert choose_lift("loop", network, norms) is by_loop
