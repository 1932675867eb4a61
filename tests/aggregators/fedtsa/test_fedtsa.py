"""FedTSA's window, its parameters and what its matrix looks like."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedctta.adapters import adapters
from fedctta.aggregators import Server, Uploads, aggregators
from fedctta.aggregators.common.mixing import matrix, restrict
from fedctta.aggregators.fedtsa import FedTSA
from fedctta.core.clients import Client, by_vmap
from fedctta.core.network import Network
from fedctta.engine.rounds import Federation
from fedctta.errors import UserError


def make_server(module=None, seed=0):
    network = Network(module or nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
    return Server(network, by_vmap, seed, (1, 2, 2), 3, lambda count: torch.zeros(count, 1, 2, 2))


def normalising():
    """A server of models with one BatchNorm layer."""
    return make_server(nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(4, 2)))


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


@pytest.mark.parametrize(
    "parameters", [{}, {"variant": "code"}, {"variant": "port"}, {"ablation": "no-time"}, {"ablation": "s-sim"}]
)
@pytest.mark.parametrize("at_once", [80, 2**24])
def test_rounds_foreseen_are_rounds_played(parameters, at_once, monkeypatch):
    """All blocks trained at once, or in parts, give the matrices of one training a round."""
    monkeypatch.setattr("fedctta.aggregators.fedtsa.foresight.AT_ONCE", at_once)  # 80 numbers are a block or two
    monkeypatch.setattr("fedctta.aggregators.fedtsa.foresight.FEWEST", 1)
    method = FedTSA(**parameters, window=3, epochs=10, lr=1e-2)
    server, batches = normalising(), 2 * torch.rand(5, 3, 2, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    memory, ahead = method.init(server), method.init(server) | method.foresee(server, batches.__getitem__, range(5))
    for x in batches:
        said = by_vmap(lambda b: method.signal(server.network, Client({}), b))(x)
        own = {"0.running_mean": x.mean((1, 3, 4))}
        now = Uploads(own, said, torch.ones(3, dtype=torch.bool))
        expected, memory = method.collaborate(server, now, memory)
        weights, ahead = method.collaborate(server, now, ahead)
        torch.testing.assert_close(weights, expected, atol=1e-5, rtol=1e-4)
        given = (method.contribute(own, now.active, kept)["0.running_mean"] for kept in (ahead, memory))
        torch.testing.assert_close(*given, atol=1e-5, rtol=1e-4)
        assert ("past.0.running_mean" in ahead) == (method.variant == "port")
    assert int(ahead["round"]) == 5


A = math.sqrt(math.sqrt(2) * math.log(3))  # A^2 / sqrt(2) = ln 3, so that an attention is a ratio of powers of three
SLOTS = [[[A, 0.0], [0.0, A]], [[0.0, A], [0.0, A]]]  # indicators of two clients in two slots
MEANS = [[[1.0], [5.0]], [[3.0], [9.0]]]  # their statistics


def play_port(names, active=None, **parameters):
    """Return W and what is mixed after the two slots."""
    aggregator, server = FedTSA("port", **parameters), normalising()
    memory = aggregator.init(server)
    for t in range(2):
        now = uploads(SLOTS[t], active and active[t])._replace(own={name: torch.tensor(MEANS[t]) for name in names})
        weights, memory = aggregator.collaborate(server, now, memory)
    return weights, aggregator.contribute(now.own, now.active, memory)


def test_the_port_mixes_what_is_attended_to_over_time():
    """Untrained, client 0 attends to its slots with 1/4 and 3/4, client 1, whose slots are equal, with 1/2 each."""
    weights, given = play_port(["0.running_mean"], ablation="ts-sim")
    torch.testing.assert_close(given["0.running_mean"], torch.tensor([[1 / 4 + 3 * 3 / 4], [5 / 2 + 9 / 2]]))
    own, other = 3 ** (5 / 8), 3 ** (3 / 4)
    torch.testing.assert_close(weights[0], torch.tensor([own, other]) / (own + other))
    torch.testing.assert_close(weights.sum(1), torch.ones(2))


def test_the_port_mixes_uploads_where_clients_own_weights():
    _, given = play_port(["0.running_mean", "2.weight"], ablation="ts-sim")
    assert all(tensor.tolist() == MEANS[1] for tensor in given.values())


def test_the_port_without_attention_over_time_mixes_uploads():
    _, given = play_port(["0.running_mean"], ablation="no-time", epochs=3)
    assert given["0.running_mean"].tolist() == MEANS[1]


def test_the_port_attends_to_slots_that_arrived():
    """Client 1 missed the first slot and is absent in the second of another run."""
    _, given = play_port(["0.running_mean"], [[True, False], [True, True]], ablation="ts-sim")
    torch.testing.assert_close(given["0.running_mean"], torch.tensor([[2.5], [9.0]]))
    _, given = play_port(["0.running_mean"], [[True, True], [True, False]], ablation="ts-sim")
    torch.testing.assert_close(given["0.running_mean"], torch.tensor([[2.5], [9.0]]))  # as it was uploaded last


def test_the_port_remembers_a_window_of_statistics():
    aggregator, server = FedTSA("port", window=3, epochs=2), normalising()
    memory = aggregator.init(server)
    for t in range(5):
        now = uploads([[1.0, t], [0.0, 1.0]])._replace(own={"0.running_mean": torch.tensor([[float(t)], [7.0]])})
        _, memory = aggregator.collaborate(server, now, memory)
    assert memory["past.0.running_mean"].squeeze(-1).tolist() == [[2, 3, 4], [7, 7, 7]]


@pytest.mark.parametrize(("adapter", "same"), [("bn", False), ("grad", True)])
def test_the_port_differs_from_the_code_in_its_constants_and_under_bn(adapter, same, tiny_network):
    """Played by the engine, two rounds: with the port's constants the code gives grad clients the same models."""
    x = torch.rand(2, 3, 6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    x = x * torch.linspace(0.3, 2, 2).view(2, 1, 1, 1, 1, 1)
    found = []
    for parameters in ({"variant": "port"}, {"variant": "code", "window": 10, "lam": 0.5}):
        server = Server(tiny_network, by_vmap, 0, (3, 8, 8), 3, lambda count: torch.zeros(count, 3, 8, 8))
        federation = Federation(adapters.create(adapter), FedTSA(**parameters, epochs=3), server)
        state, everybody = federation.start(), torch.ones(3, dtype=torch.bool)
        with torch.no_grad():
            for t in range(2):
                state, outcome = federation.play(state, t, x[t], everybody, None)
        found.append((state.clients.own, matrix(outcome.weights)))
    (port, port_weights), (code, code_weights) = found
    assert torch.equal(port_weights, code_weights)
    assert all(torch.equal(port[name], code[name]) == same for name in tiny_network.statistics)


def test_constants_are_the_variants_unless_given():
    assert FedTSA().constants == (10, 1.0, 1e-3)
    assert FedTSA("code").constants == (5, 0.1, 1e-4)
    assert FedTSA("port").constants == (10, 0.5, 1e-4)
    assert FedTSA("port").training == FedTSA("code", window=10, lam=0.5).training
    chosen = aggregators.create("fedtsa", {"variant": "code", "window": "7", "lam": "0"})
    assert chosen.constants == (7, 0.0, 1e-4)


def test_impossible_parameters_are_refused():
    for parameters in ({"window": 0}, {"epochs": 0}, {"lam": -1.0}, {"lr": -1e-3}):
        with pytest.raises(UserError, match=r"must (be at least|not be negative)"):
            FedTSA(**parameters)
