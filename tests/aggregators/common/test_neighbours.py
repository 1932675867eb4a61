"""W of a few neighbours: the dense one with all other weights zeroed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedctta.aggregators import Server, Uploads
from fedctta.aggregators.common import neighbours
from fedctta.aggregators.common.mixing import mix, overall, restrict
from fedctta.aggregators.common.neighbours import Neighbours, nearest
from fedctta.aggregators.fedctta import FedCTTA, collaboration, with_neighbours
from fedctta.core.clients import by_vmap
from fedctta.errors import UserError

FORMS = [("euclid", 1.0, False), ("kl", 0.5, False), ("ce", 1.0, False), ("cosine", 0.1, True)]


def indicators(clients: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(clients, 5, generator=torch.Generator().manual_seed(seed))


def zeroed(weights: torch.Tensor, active: torch.Tensor, k: int) -> torch.Tensor:
    """Return dense W with zeros for all but oneself and the k - 1 largest weights on others that are active."""
    kept = torch.zeros_like(weights)
    for i, row in enumerate(weights.tolist()):
        others = [j for j in range(len(row)) if j != i and active[j]]
        for j in (i, *sorted(others, key=lambda j: -row[j])[: k - 1]):
            kept[i, j] = row[j]
    return kept


@given(
    st.sampled_from(FORMS),
    st.lists(st.booleans(), min_size=1, max_size=9).filter(any),
    st.integers(1, 9),
    st.integers(0, 9),
)
def test_it_is_the_dense_matrix_with_all_other_weights_zeroed(form, present, k, seed):
    active, k = torch.tensor(present), min(k, len(present))
    mu = indicators(len(present), seed)
    expected = restrict(zeroed(collaboration(mu, *form), active, k), active)
    found = restrict(with_neighbours(mu, active, k, *form), active)
    torch.testing.assert_close(overall(found, {}).to_dense(), expected)
    own = {"a": indicators(len(present), seed + 100), "b": indicators(len(present), 1)[:, 0]}
    torch.testing.assert_close(mix(found, own), mix(expected, own))


@pytest.mark.parametrize("k", [1, 2, 4, 7])
def test_trust_weights_the_columns_and_those_who_do_not_receive_keep_their_model(k):
    mu, trust = indicators(7), torch.tensor([1.0, 0.5, 0.0, 0.25, 1.0, 1.0, 0.5])
    active, receive = trust > 0, trust == 1
    dense = restrict(zeroed(collaboration(mu, "euclid", 1.0), active, k), receive, trust)
    sparse = overall(restrict(with_neighbours(mu, active, k, "euclid", 1.0), receive, trust), {}).to_dense()
    torch.testing.assert_close(sparse, dense)
    assert torch.equal(sparse[~receive], torch.eye(7)[~receive])


def test_a_row_left_without_weight_falls_back_to_itself():
    weights = Neighbours(torch.tensor([[0, 1], [1, 0]]), torch.tensor([[0.0, 1.0], [0.5, 0.5]]))
    alone = restrict(weights, torch.tensor([True, False]))
    assert overall(alone, {}).to_dense().tolist() == [[1, 0], [0, 1]]


def test_oneself_is_always_a_neighbour_even_with_the_worst_score():
    scores = torch.tensor([[-9.0, 1.0, 2.0], [1.0, -9.0, 2.0], [2.0, 1.0, -9.0]])
    found = nearest(lambda rows: scores[rows], torch.ones(3, dtype=torch.bool), 2)
    assert found.who.tolist() == [[0, 2], [1, 2], [2, 0]]
    torch.testing.assert_close(found.weight[0], torch.tensor([-9.0, 2.0]).softmax(0))


def test_a_few_rows_at_a_time_give_the_same(monkeypatch):
    mu, active = indicators(11), torch.arange(11) != 4
    whole = with_neighbours(mu, active, 4, "euclid", 1.0)
    looked_at = []

    def score(rows: slice) -> torch.Tensor:
        looked_at.append(rows)
        return -torch.cdist(mu[rows], mu, compute_mode="donot_use_mm_for_euclid_dist")

    monkeypatch.setattr(neighbours, "SCORES_AT_ONCE", 40)
    parts = nearest(score, active, 4)
    assert [rows.stop - rows.start for rows in looked_at] == [3, 3, 3, 2]
    assert torch.equal(parts.who, whole.who)
    torch.testing.assert_close(parts.weight, whole.weight)


def test_permuting_clients_permutes_the_matrix():
    order, mu = torch.tensor([3, 0, 4, 1, 5, 2]), indicators(6)
    active = torch.tensor([True, True, False, True, True, True])
    first, second = (
        restrict(with_neighbours(mu[p], active[p], 3, "euclid", 1.0), active[p]) for p in (torch.arange(6), order)
    )
    expected = overall(first, {}).to_dense()[order][:, order]
    torch.testing.assert_close(overall(second, {}).to_dense(), expected)


def test_mixing_by_hand():
    weights = Neighbours(torch.tensor([[0, 2], [1, 0], [2, 1]]), torch.tensor([[0.75, 0.25], [0.5, 0.5], [1.0, 0.0]]))
    own = {"a": torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), "b": torch.tensor([4.0, 8.0, 0.0])}
    mixed = mix(weights, own)
    assert mixed["a"].tolist() == [[2, 3], [2, 3], [5, 6]]
    assert mixed["b"].tolist() == [3, 6, 0]
    empty = torch.zeros(3, 0, 2)
    assert mix(weights, {"c": empty})["c"].shape == empty.shape


@pytest.fixture
def play(tiny_network):
    """Give a player of one round: (aggregator, clients, active) -> restricted W and what the clients get."""

    def played(aggregator, clients, active=None, seed=0):
        generator = torch.Generator().manual_seed(seed)
        own = {n: t * (0.5 + torch.rand(clients, *t.shape, generator=generator)) for n, t in tiny_network.state.items()}
        server = Server(tiny_network, by_vmap, 0, (3, 8, 8), clients, lambda count: torch.zeros(count, 3, 8, 8))
        active = torch.ones(clients, dtype=torch.bool) if active is None else active
        weights, _ = aggregator.collaborate(server, Uploads(own, {}, active), aggregator.init(server))
        return weights, mix(restrict(weights, active), own)

    return played


@pytest.mark.parametrize("clients", [1, 2, 5])
def test_as_many_neighbours_as_clients_are_everybody(play, clients):
    everybody, models = play(FedCTTA(), clients)
    for k in (clients, clients + 1):
        weights, same = play(FedCTTA(neighbours=k), clients)
        assert torch.equal(weights, everybody)
        assert all(torch.equal(same[name], tensor) for name, tensor in models.items())


def test_an_absent_client_is_nobodys_neighbour(play):
    present = torch.tensor([True, False, True, True, True])
    weights, _ = play(FedCTTA(neighbours=3), 5, present)
    dense = overall(restrict(weights, present), {}).to_dense()
    assert (dense[present][:, 1] == 0).all()
    assert ((dense[present] > 0).sum(1) == 3).all()
    assert dense[1].tolist() == [0, 1, 0, 0, 0]


def test_received_models_can_be_probed_with_neighbours(play):
    weights, _ = play(FedCTTA(neighbours=2, statistics="received"), 4)
    assert isinstance(weights, Neighbours)


def test_a_negative_number_of_neighbours_is_refused():
    with pytest.raises(UserError, match="neighbours=-1 must not be negative"):
        FedCTTA(neighbours=-1)
