"""Stacks of clients, and lifting."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedctta.core.clients import Client, InChunks, by_loop, by_vmap, choose_lift, put, stack, take
from fedctta.core.network import Network


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
    for lift in (by_vmap, InChunks(5)):
        lifted = lift(step)(clients, x)
        torch.testing.assert_close(looped.own["w"], lifted.own["w"])
        assert looped.private["n"].tolist() == lifted.private["n"].tolist()


@pytest.mark.parametrize(
    "lift",
    [by_vmap, by_loop, InChunks(2), InChunks(2, in_place=True), InChunks(2, each=by_loop)],
    ids=["vmap", "loop", "chunks", "chunks in place", "chunks of loops"],
)
def test_no_clients_lift_to_no_clients(lift):
    nobody = Client({"w": torch.zeros(0, 2)})
    clients, x = lift(lambda client, x: (client, x.outer(x)))(nobody, torch.zeros(0, 3))
    assert clients.own["w"].shape == (0, 2)
    assert x.shape == (0, 3, 3)


def test_clients_lifted_a_few_at_a_time_keep_the_order_of_memory():
    """Kernels with channels last, as on a GPU, stay so where there are more clients than go at once."""

    def step(client, x):
        return Client({"k": client.own["k"] + x}), x

    kernels = torch.rand(7, 3, 3, 2, 4).permute(0, 4, 3, 1, 2)
    clients, x = InChunks(3)(step)(Client({"k": kernels}), torch.ones(7))
    assert clients.own["k"].stride() == kernels.stride()
    torch.testing.assert_close(clients.own["k"], kernels + 1)
    assert x.tolist() == [1] * 7


def test_what_is_the_same_for_all_clients_can_be_lifted_a_few_at_a_time():
    lifted = InChunks(2)(lambda x: torch.arange(3.0))(torch.zeros(5))
    assert lifted.tolist() == [[0, 1, 2]] * 5


def test_a_function_that_returns_nothing_is_called_for_some_clients_only():
    asked = []

    def ask(x):
        asked.append(x)
        return {}

    assert InChunks(2)(ask)(torch.zeros(9)) == {}
    assert len(asked) == 1


def test_vmap_takes_as_many_clients_at_once_as_are_good():
    network = Network(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2)))
    norms = Client(network.statistics)
    everything = Client({**network.parameters, **network.statistics})

    def chosen(client, batch):
        return choose_lift("auto", network, client, batch).__name__

    assert chosen(norms, 10) == "by_vmap_50_clients_at_a_time"
    assert chosen(everything, 10) == "by_vmap_20_clients_at_a_time"
    assert chosen(everything, 200) == "by_vmap_1_clients_at_a_time"
    assert choose_lift("loop", network, norms, 10) is by_loop
    assert choose_lift("auto", network, norms, 10, fit=7).__name__ == "by_vmap_7_clients_at_a_time"
    assert choose_lift("auto", network, norms, 10, fit=70).__name__ == "by_vmap_50_clients_at_a_time"
