"""What every aggregator must satisfy, and mixing itself."""

from __future__ import annotations

import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedctta.aggregators import Server, Uploads, aggregators, mix, restrict
from fedctta.clients import by_loop, by_vmap, stack

FORMS = [
    ("local", {}),
    ("fedavg", {}),
    ("oracle", {}),
    ("fedctta", {}),
    ("fedctta", {"ema": 0.0}),
    ("fedctta", {"metric": "kl"}),
    ("fedctta", {"metric": "ce"}),
    ("fedctta", {"metric": "cosine", "squash": True}),
    ("fedctta", {"compare": "features"}),
    ("fedctta", {"compare": "probabilities", "metric": "kl"}),
    ("fedctta", {"probe": "images"}),
    ("fedctta", {"probe": "batch"}),
    ("fedctta", {"redraw": "round"}),
    ("fedctta", {"statistics": "received"}),
]
ids = ["-".join([name, *map(str, parameters.values())]) for name, parameters in FORMS]


@pytest.fixture(params=FORMS, ids=ids)
def aggregator(request):
    return aggregators.create(*request.param)


def make_server(network, clients, lift=by_vmap):
    images = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    return Server(network, lift, seed=0, shape=(3, 8, 8), clients=clients, images=lambda count: images[:count])


def make_uploads(network, aggregator, clients, seed=0):
    """Clients with random statistics around the source's, signals from random batches, alternating domains."""
    generator = torch.Generator().manual_seed(seed)
    own = {
        name: tensor * (0.5 + torch.rand(clients, *tensor.shape, generator=generator))
        for name, tensor in network.statistics.items()
    }
    batches = torch.rand(clients, 4, 3, 8, 8, generator=generator)
    parts = [aggregator.signal(network, None, x) for x in batches]
    signals = {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
    return Uploads(own, signals, torch.ones(clients, dtype=torch.bool), torch.arange(clients) % 2)


def permuted(uploads, order):
    def rows(tensors):
        return {name: tensor[order] for name, tensor in tensors.items()}

    return Uploads(rows(uploads.own), rows(uploads.signals), uploads.active[order], uploads.domain[order])


@pytest.mark.parametrize("clients", [1, 2, 5])
def test_rows_sum_to_one_and_are_not_negative(aggregator, clients, tiny_network):
    server = make_server(tiny_network, clients)
    memory = aggregator.init(server)
    for seed in range(3):
        weights, memory = aggregator.collaborate(server, make_uploads(tiny_network, aggregator, clients, seed), memory)
        assert weights.shape == (clients, clients)
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(1), torch.ones(clients), atol=1e-6, rtol=0)


def test_permuting_clients_permutes_the_matrix(aggregator, tiny_network):
    order, server = torch.tensor([3, 0, 4, 1, 2]), make_server(tiny_network, 5)
    memory, memory_permuted = aggregator.init(server), aggregator.init(server)
    for seed in range(2):
        uploads = make_uploads(tiny_network, aggregator, 5, seed)
        weights, memory = aggregator.collaborate(server, uploads, memory)
        again, memory_permuted = aggregator.collaborate(server, permuted(uploads, order), memory_permuted)
        torch.testing.assert_close(again, weights[order][:, order], atol=1e-5, rtol=1e-4)


def test_an_absent_client_changes_nothing_for_the_others(aggregator, tiny_network):
    server = make_server(tiny_network, 4)
    present = torch.tensor([True, False, True, True])
    uploads = make_uploads(tiny_network, aggregator, 4)._replace(active=present)
    stranger = {name: tensor.clone() for name, tensor in uploads.own.items()}
    for tensor in stranger.values():
        tensor[1] += 1.0
    weights, _ = aggregator.collaborate(server, uploads, aggregator.init(server))
    other, _ = aggregator.collaborate(server, uploads._replace(own=stranger), aggregator.init(server))
    weights, other = restrict(weights, present), restrict(other, present)
    torch.testing.assert_close(weights, other)
    torch.testing.assert_close(weights.sum(1), torch.ones(4))
    assert weights[1].tolist() == [0, 1, 0, 0]
    assert (weights[present][:, 1] == 0).all()


def test_memory_does_not_grow(aggregator, tiny_network):
    server = make_server(tiny_network, 3)
    memory = aggregator.init(server)
    sizes = []
    for seed in range(4):
        _, memory = aggregator.collaborate(server, make_uploads(tiny_network, aggregator, 3, seed), memory)
        sizes.append(sum(t.numel() for t in memory.values()))
    assert len(set(sizes)) == 1


def test_lifting_does_not_change_the_matrix(aggregator, tiny_network):
    uploads = make_uploads(tiny_network, aggregator, 3)
    by = {}
    for lift in (by_vmap, by_loop):
        server = make_server(tiny_network, 3, lift)
        by[lift], _ = aggregator.collaborate(server, uploads, aggregator.init(server))
    torch.testing.assert_close(by[by_vmap], by[by_loop], atol=1e-5, rtol=1e-4)


def test_no_aggregator_is_given_labels(aggregator):
    assert set(inspect.signature(aggregator.collaborate).parameters) == {"server", "uploads", "memory"}
    assert set(inspect.signature(aggregator.signal).parameters) == {"network", "client", "x"}


def test_equal_clients_are_not_told_apart(aggregator, tiny_network):
    if not aggregator.communicates:
        pytest.skip("nobody collaborates")
    server = make_server(tiny_network, 4)
    own = stack(tiny_network.statistics, 4)
    x = torch.rand(4, 3, 8, 8)
    signals = stack(aggregator.signal(tiny_network, None, x), 4)
    uploads = Uploads(own, signals, torch.ones(4, dtype=torch.bool), torch.zeros(4))
    weights, _ = aggregator.collaborate(server, uploads, aggregator.init(server))
    torch.testing.assert_close(weights, torch.full((4, 4), 0.25), atol=1e-4, rtol=0)


def test_mixing_by_hand():
    weights = torch.tensor([[0.75, 0.25], [0.0, 1.0]])
    own = {"a": torch.tensor([[1.0, 2.0], [5.0, 6.0]]), "b": torch.tensor([4.0, 8.0])}
    mixed = mix(weights, own)
    assert mixed["a"].tolist() == [[2.0, 3.0], [5.0, 6.0]]
    assert mixed["b"].tolist() == [5.0, 8.0]


@given(st.integers(1, 6), st.lists(st.integers(0, 3), max_size=3), st.integers(0, 10))
def test_mixing_equal_models_gives_them_back(clients, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(clients, clients, generator=generator).softmax(1)
    model = torch.rand(shape, generator=generator).expand(clients, *shape)
    torch.testing.assert_close(mix(weights, {"a": model})["a"], model.contiguous())


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.integers(0, 10))
def test_restriction_equals_a_softmax_over_those_present(active, seed):
    present = torch.tensor(active)
    scores = torch.rand(len(active), len(active), generator=torch.Generator().manual_seed(seed))
    expected = scores.masked_fill(~present[None, :], -torch.inf).softmax(1)
    expected[~present] = torch.eye(len(active))[~present]
    torch.testing.assert_close(restrict(scores.softmax(1), present), expected)


def test_a_row_left_without_weight_falls_back_to_itself():
    weights = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    assert restrict(weights, torch.tensor([True, False])).tolist() == [[1, 0], [0, 1]]
