"""FedTSA's window, its parameters and what its matrix looks like; the block itself is tested in test_attention."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedctta.aggregators import Server, Uploads, aggregators, restrict
from fedctta.aggregators.fedtsa import FedTSA
from fedctta.clients import Client, by_vmap
from fedctta.errors import UserError
from fedctta.network import Network


def make_server(module=None, seed=0):
    network = Network(module or nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
    return Server(network, by_vmap, seed, (1, 2, 2), 3, lambda count: torch.zeros(count, 1, 2, 2))


def uploads(indicators, active=None):
    indicators = torch.as_tensor(indicators, dtype=torch.float32)
    everyone = torch.ones(len(indicators), dtype=torch.bool)
    return Uploads({}, {"indicator": indicators}, everyone if active is None else torch.tensor(active))


def play(aggregator, rounds, active=None, seed=0):
    """Return the last W and memory after rounds of the given indicators."""
    server = make_server(seed=seed)
    weights, memory = None, aggregator.init(server)
    for t, indicators in enumerate(rounds):
        weights, memory = aggregator.collaborate(server, uploads(indicators, active and active[t]), memory)
    return weights, memory


def random_rounds(rounds=3, clients=4, dim=6, seed=0):
    return list(2 * torch.rand(rounds, clients, dim, generator=torch.Generator().manual_seed(seed)))


def test_the_signal_is_the_mean_feature_of_the_source_model():
    server, x = make_server(), torch.rand(5, 1, 2, 2)
    signal = FedTSA().signal(server.network, None, x)
    torch.testing.assert_close(signal["indicator"], x.flatten(1).mean(0))


def test_a_model_without_features_is_refused():
    server = make_server(nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten()))
    with pytest.raises(UserError, match="use another aggregator"):
        FedTSA().init(server)


def test_the_window_slides_and_keeps_its_size():
    aggregator = FedTSA(window=2, ablation="ts-sim")
    _, memory = play(aggregator, [[[1.0], [2.0]]])
    assert memory["window"].squeeze(-1).tolist() == [[0, 1], [0, 2]]
    assert memory["known"].tolist() == [[False, True], [False, True]]
    _, memory = play(aggregator, [[[1.0], [2.0]], [[3.0], [4.0]], [[5.0], [math.nan]]], [None, None, [True, False]])
    assert memory["window"].squeeze(-1).tolist() == [[3, 5], [4, 0]]
    assert memory["known"].tolist() == [[True, True], [True, False]]
    assert memory["round"] == 3


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_what_an_absent_client_would_have_sent_does_not_matter(variant):
    aggregator, present = FedTSA(variant, epochs=10), [True, False, True, True]
    matrices = []
    for garbage in (0.0, 1e30, math.nan):
        rounds = random_rounds()
        rounds[1][1] = garbage
        rounds[2][1] = garbage
        weights, memory = play(aggregator, rounds, [None, present, present])
        assert weights.isfinite().all()
        assert memory["window"].isfinite().all()
        matrices.append(restrict(weights, torch.tensor(present)))
    assert torch.equal(matrices[0], matrices[1])
    assert torch.equal(matrices[0], matrices[2])


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_clients_lean_on_those_with_the_same_direction(variant):
    generator = torch.Generator().manual_seed(0)
    towards = torch.zeros(6, 8)
    towards[:3, :4], towards[3:, 4:] = 2.0, 2.0
    rounds = [towards + 0.2 * torch.rand(6, 8, generator=generator) for _ in range(4)]
    weights, _ = play(FedTSA(variant), rounds)
    inside = torch.block_diag(torch.ones(3, 3), torch.ones(3, 3)).bool()
    assert (weights * inside).sum(1).min() > 0.9
    assert weights[inside].min() > 0.1


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_a_seed_and_round_fix_the_masks(variant):
    aggregator, rounds = FedTSA(variant, epochs=20, lr=1e-2), random_rounds()
    weights, _ = play(aggregator, rounds)
    assert torch.equal(play(aggregator, rounds)[0], weights)
    assert not torch.equal(play(aggregator, rounds, seed=1)[0], weights)
    server, (_, memory) = make_server(), play(aggregator, rounds[:2])
    later = {**memory, "round": memory["round"] + 1}
    assert not torch.equal(aggregator.collaborate(server, uploads(rounds[2]), later)[0], weights)


def test_similarity_alone_is_a_softmax_of_this_slot():
    rounds = random_rounds()
    weights, _ = play(FedTSA(ablation="s-sim"), rounds)
    torch.testing.assert_close(weights, (rounds[-1] @ rounds[-1].T / math.sqrt(6)).softmax(1))


def test_ablations_leave_out_what_they_say():
    rounds = random_rounds()

    def matrix(**parameters):
        return play(FedTSA(**{"epochs": 20, "lr": 1e-2} | parameters), rounds)[0]

    whole = matrix()
    assert torch.equal(matrix(ablation="no-aug"), matrix(lam=0.0))
    assert torch.equal(matrix(ablation="ts-sim"), matrix(epochs=1))
    torch.testing.assert_close(matrix(ablation="s-sim"), matrix(ablation="no-time", epochs=1))
    others = [matrix(ablation=ablation) for ablation in ("s-sim", "ts-sim", "no-time", "no-aug")]
    for i, weights in enumerate([whole, *others]):
        for other in others[i:]:
            assert (weights - other).abs().max() > 1e-4
    # A window of one slot has nothing to attend to over time.
    torch.testing.assert_close(matrix(window=1), matrix(window=1, ablation="no-time"), atol=1e-5, rtol=0)


@pytest.mark.parametrize("parameters", [{}, {"variant": "code"}, {"ablation": "no-time"}, {"ablation": "s-sim"}])
@pytest.mark.parametrize("at_once", [80, 2**24])
def test_rounds_foreseen_are_rounds_played(parameters, at_once, monkeypatch):
    """All blocks trained at once, or in parts, give the matrices of one training a round."""
    monkeypatch.setattr("fedctta.aggregators.fedtsa.AT_ONCE", at_once)  # 80 numbers are a block or two
    monkeypatch.setattr("fedctta.aggregators.fedtsa.TOO_FEW", 1)
    method = FedTSA(**parameters, window=3, epochs=10, lr=1e-2)
    server, batches = make_server(), 2 * torch.rand(5, 3, 2, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    memory, ahead = method.init(server), method.init(server) | method.foresee(server, batches.__getitem__, range(5))
    for x in batches:
        said = by_vmap(lambda b: method.signal(server.network, Client({}), b))(x)
        now = Uploads({}, said, torch.ones(3, dtype=torch.bool))
        expected, memory = method.collaborate(server, now, memory)
        weights, ahead = method.collaborate(server, now, ahead)
        torch.testing.assert_close(weights, expected, atol=1e-5, rtol=1e-4)
    assert int(ahead["round"]) == 5


def test_too_many_clients_are_not_foreseen(monkeypatch):
    monkeypatch.setattr("fedctta.aggregators.fedtsa.LARGEST", 8)
    assert FedTSA().foresee(make_server(), lambda t: torch.zeros(3, 2, 1, 2, 2), range(1)) == {}


def test_without_a_round_that_aggregates_nothing_is_foreseen():
    assert FedTSA().foresee(make_server(), lambda t: torch.zeros(3, 2, 1, 2, 2), []) == {}


def test_large_blocks_are_trained_round_by_round(monkeypatch):
    asked = []

    def read(t):
        asked.append(t)
        return torch.zeros(3, 2, 1, 2, 2)

    monkeypatch.setattr("fedctta.aggregators.fedtsa.AT_ONCE", 8 * 5 * 16 - 1)  # a block has 5 x 16 numbers
    assert FedTSA().foresee(make_server(), read, range(4)) == {}
    assert asked == [0]
    monkeypatch.setattr("fedctta.aggregators.fedtsa.AT_ONCE", 8 * 5 * 16)
    assert FedTSA(epochs=1).foresee(make_server(), read, range(4))["foreseen"].shape == (4, 3, 3)


def test_constants_are_the_variants_unless_given():
    assert FedTSA().constants == (10, 1.0, 1e-3)
    assert FedTSA("code").constants == (5, 0.1, 1e-4)
    chosen = aggregators.create("fedtsa", {"variant": "code", "window": "7", "lam": "0"})
    assert chosen.constants == (7, 0.0, 1e-4)


def test_impossible_parameters_are_refused():
    for parameters in ({"window": 0}, {"epochs": 0}, {"lam": -1.0}, {"lr": -1e-3}):
        with pytest.raises(UserError, match="must be at least"):
            FedTSA(**parameters)
