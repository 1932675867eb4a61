"""The gate, the server's model and its greeting, by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedctta.adapters import adapters
from fedctta.aggregators import Server, Uploads
from fedctta.aggregators.common.mixing import mix, restrict
from fedctta.aggregators.fedavg import FedAvg
from fedctta.aggregators.ugsa import UGSA
from fedctta.core.clients import Client, by_vmap
from fedctta.core.network import Network
from fedctta.engine.rounds import Federation
from fedctta.errors import UserError

SOURCE = {"a": torch.tensor([1.0, 0.0])}
SERVER = SimpleNamespace(network=SimpleNamespace(state=SOURCE, device=torch.device("cpu")))
TWO = torch.tensor([[2.0, 0.0], [3.0, 4.0]])


def play(aggregator, models, sigma, active=None, trust=None, memory=None, receive=None):
    """Play one round as the engine does; return W as restricted, what was sent, and the memory."""
    active = torch.ones(len(models), dtype=torch.bool) if active is None else torch.tensor(active)
    trust = None if trust is None else torch.tensor(trust)
    receive = active if receive is None else torch.tensor(receive)
    memory = aggregator.init(SERVER) if memory is None else memory
    uploads = Uploads({"a": models}, {"uncertainty": torch.tensor(sigma)}, active, None, trust)
    weights, memory = aggregator.collaborate(SERVER, uploads, memory)
    torch.testing.assert_close(weights.sum(1), torch.ones(len(models)))
    weights = restrict(weights, receive, trust)
    sent, memory = aggregator.step(SERVER, uploads, mix(weights, uploads.own), receive, memory)
    return weights, sent["a"], memory


def test_the_gate_by_hand():
    """beta = ln 2: w = 1/2 and 1/4, so W = 2/3, 1/3 and the rate is gamma 3/8."""
    weights, sent, memory = play(UGSA(beta=math.log(2), gamma=0.8), TWO, [1.0, 2.0])
    torch.testing.assert_close(weights, torch.tensor([[2 / 3, 1 / 3]] * 2))
    expected = torch.tensor([1.0, 0.0]) + 0.8 * (0.5 * torch.tensor([1.0, 0.0]) + 0.25 * torch.tensor([2.0, 4.0])) / 2
    torch.testing.assert_close(sent, expected.expand(2, 2))
    torch.testing.assert_close(memory["global.a"], expected)


def test_the_softmax_gate_by_hand():
    weights, sent, _ = play(UGSA(beta=math.log(2), gamma=0.75, gate="softmax"), TWO, [1.0, 2.0])
    torch.testing.assert_close(weights, torch.tensor([[2 / 3, 1 / 3]] * 2))
    torch.testing.assert_close(sent[0], torch.tensor([1.0, 0.0]) + 0.75 * torch.tensor([4 / 3, 4 / 3]))


def test_two_arrivals_one_after_another():
    """w = exp(-0.2 * 1), then exp(-0.2 * 0.5), with gamma = 0.5: the formula of the paper."""
    aggregator, g = UGSA(), torch.tensor([1.0, 0.0])
    memory = aggregator.init(SERVER)
    for client, (model, sigma) in enumerate([([2.0, 0.0], 1.0), ([3.0, 4.0], 0.5)]):
        there = [client == 0, client == 1]
        models = torch.where(torch.tensor(there)[:, None], torch.tensor(model), 9.0)
        _, sent, memory = play(aggregator, models, [sigma, sigma], there, memory=memory)
        g = g + 0.5 * math.exp(-0.2 * sigma) * (torch.tensor(model) - g)
        torch.testing.assert_close(sent[client], g)
        assert sent[1 - client].tolist() == [9, 9]
    torch.testing.assert_close(memory["global.a"], g)


def test_an_open_gate_at_full_rate_is_fedavg():
    models = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    memory = None
    for round_ in range(2):
        own = models + round_
        _, sent, memory = play(UGSA(beta=0.0, gamma=1.0), own, [0.1, 5.0, 2.0, 1.0], memory=memory)
        weights, _ = FedAvg().collaborate(SERVER, Uploads({"a": own}, {}, torch.ones(4, dtype=torch.bool)), {})
        torch.testing.assert_close(sent, mix(weights, {"a": own})["a"])
    _, away, _ = play(UGSA(beta=0.0, gamma=1.0), models, [0.1] * 4, [False] * 4, memory=memory)
    assert torch.equal(away, models)


@pytest.mark.parametrize("gate", ["exp", "softmax"])
@pytest.mark.parametrize("normalise", ["none", "running"])
def test_the_order_of_clients_does_not_matter(gate, normalise):
    aggregator, order = UGSA(gate=gate, normalise=normalise, beta=2.0), torch.tensor([2, 0, 1])
    models, sigma = torch.randn(3, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0.2, 1.0, 3.0])
    memory = again = None
    for _ in range(2):
        weights, _, memory = play(aggregator, models, sigma.tolist(), memory=memory)
        permuted, _, again = play(aggregator, models[order], sigma[order].tolist(), memory=again)
        torch.testing.assert_close(permuted, weights[order][:, order])
        torch.testing.assert_close(again["global.a"], memory["global.a"])
    assert weights[0, 0] > weights[0, 1] > weights[0, 2]


@pytest.mark.parametrize(("gate", "rate"), [("exp", 0.5 * math.exp(-0.4)), ("softmax", 0.5)])
def test_one_client_alone(gate, rate):
    weights, sent, _ = play(UGSA(gate=gate), torch.tensor([[2.0, 4.0]]), [2.0])
    assert weights.tolist() == [[1]]
    torch.testing.assert_close(sent[0], torch.tensor([1.0 + rate, 4 * rate]))


def test_an_absent_client_neither_counts_nor_receives():
    models = torch.cat([TWO, torch.full((1, 2), torch.inf)])
    _, sent, memory = play(UGSA(), models, [1.0, 2.0, 0.0], [True, True, False])
    _, pair, alone = play(UGSA(), TWO, [1.0, 2.0])
    torch.testing.assert_close(sent[:2], pair)
    torch.testing.assert_close(memory["global.a"], alone["global.a"])


@pytest.mark.parametrize("gate", ["exp", "softmax"])
@pytest.mark.parametrize("normalise", ["none", "running"])
def test_with_nobody_there_the_server_stays(gate, normalise):
    aggregator = UGSA(gate=gate, normalise=normalise)
    _, sent, memory = play(aggregator, TWO, [0.0, 0.0], [False, False])
    assert torch.equal(sent, TWO)
    assert memory["global.a"].tolist() == [1, 0]
    _, _, before = play(aggregator, TWO, [1.0, 2.0], memory=memory)
    _, _, after = play(aggregator, TWO, [0.0, 0.0], [False, False], memory=before)
    assert all(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("gate", ["exp", "softmax"])
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_an_upload_without_a_sound_sigma_does_not_count(gate, broken):
    models = torch.stack([TWO[0], torch.full((2,), torch.nan)])
    uploads = Uploads({"a": models}, {"uncertainty": torch.tensor([1.0, broken])}, torch.tensor([True, True]))
    weights, memory = UGSA(gate=gate).collaborate(SERVER, uploads, {})
    _, _, alone = play(UGSA(gate=gate), TWO[:1], [1.0])
    assert weights.tolist() == [[1, 0]] * 2
    torch.testing.assert_close(memory["global.a"], alone["global.a"])
    sound = uploads._replace(signals={"uncertainty": torch.tensor([1.0, 1.0])})
    assert UGSA(gate=gate).collaborate(SERVER, sound, {})[1]["global.a"].isfinite().all()


def test_a_late_upload_counts_less_once_and_not_twice():
    """Trust 1 and 1/2 with an open gate: W = 2/3, 1/3 after the engine's weighting, rate 1/2 (1 + 1/2) / 2."""
    weights, sent, _ = play(UGSA(beta=0.0), TWO, [0.0, 0.0], trust=[1.0, 0.5])
    torch.testing.assert_close(weights, torch.tensor([[2 / 3, 1 / 3]] * 2))
    expected = torch.tensor([1.0, 0.0]) + 0.5 * (torch.tensor([1.0, 0.0]) + 0.5 * torch.tensor([2.0, 4.0])) / 2
    torch.testing.assert_close(sent[0], expected)
    _, half, _ = play(UGSA(beta=0.0, gate="softmax"), TWO[1:], [0.0], trust=[0.5])
    torch.testing.assert_close(half[0], torch.tensor([1.0, 0.0]) + 0.5 * 0.5 * torch.tensor([2.0, 4.0]))


def test_a_late_upload_moves_the_server_though_nobody_receives():
    _, sent, memory = play(UGSA(beta=0.0), TWO, [0.0, 0.0], trust=[0.0, 1.0], receive=[False, False])
    assert torch.equal(sent, TWO)
    assert memory["global.a"].tolist() == [2, 2]


def test_a_server_never_shoots_past_its_uploads():
    for sigma in (-20.0, -1e6):
        _, sent, _ = play(UGSA(normalise="none"), TWO[1:], [sigma])
        assert sent.tolist() == [[3, 4]]
    _, kept, _ = play(UGSA(normalise="none", gamma=0.0), TWO[1:], [-1e6])
    assert kept.tolist() == [[1, 0]]


def test_who_joins_is_given_the_servers_model():
    aggregator, own = UGSA(), {"a": TWO}
    assert aggregator.welcome(own, torch.tensor([True, True]), aggregator.init(SERVER)) is own
    _, _, memory = play(aggregator, TWO, [1.0, 1.0])
    welcomed = aggregator.welcome(own, torch.tensor([False, True]), memory)["a"]
    assert torch.equal(welcomed[0], TWO[0])
    assert torch.equal(welcomed[1], memory["global.a"])
    assert not torch.equal(welcomed[1], TWO[1])


def test_sigma_is_scaled_as_asked(tiny_network):
    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))

    def told(**parameters):
        return UGSA(**parameters).signal(tiny_network, Client({}), x)["uncertainty"].item()

    plain = told(normalise="none")
    assert told() == told(normalise="classes") == pytest.approx(plain / math.log(3))
    assert told(normalise="running") == plain
    assert told(uncertainty="energy") == told(uncertainty="energy", normalise="none") < 0
    consistency = told(uncertainty="consistency")
    assert consistency == told(uncertainty="consistency", normalise="none")
    assert told(uncertainty="consistency", normalise="classes") == pytest.approx(consistency / math.log(3))
    assert [UGSA(m).scale for m in ("dropout", "ensemble", "energy")] == ["classes", "classes", "running"]


def test_energies_are_judged_against_those_before():
    """Mean -8, spread 2: scaled to 0 and 2, so with beta = ln 2 the weights are 1 and 1/4."""
    weights, _, memory = play(UGSA("energy", beta=math.log(2)), TWO, [-10.0, -6.0])
    torch.testing.assert_close(weights[0], torch.tensor([0.8, 0.2]))
    assert memory["mean"].item() == pytest.approx(-8)


def test_who_arrives_later_starts_from_what_others_left(tiny_network):
    """Through the engine, with BPA: the second client's prior is the server's model, not the source."""
    server = Server(tiny_network, by_vmap, 0, (3, 8, 8), 2, lambda count: torch.zeros(count, 3, 8, 8))
    federation = Federation(adapters.create("bpa", {"lr": 0.05}), UGSA(), server)
    x = torch.rand(2, 1, 5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    first, second = torch.tensor([True, False]), torch.tensor([False, True])
    with torch.no_grad():
        state, outcome = federation.play(federation.start(), 0, x[0], first, None, joined=first)
        floats = sum(t[0].numel() for t in state.clients.own.values())
        assert (outcome.bytes_up, outcome.bytes_down) == (4 * (floats + 1), 4 * floats)
        left = {name: state.memory[f"global.{name}"] for name in state.clients.own}
        assert any(not torch.equal(tensor, tiny_network.state[name]) for name, tensor in left.items())
        adapter, stranger = federation.adapter, federation.adapter.init(tiny_network)
        informed = adapter.receive(tiny_network, stranger._replace(own=left), x[1, 0])
        expected, uninformed = (adapter.adapt(tiny_network, client, x[1, 0]) for client in (informed, stranger))
        state, _ = federation.play(state, 1, x[1], second, None, joined=second)
    for name, tensor in expected.own.items():
        torch.testing.assert_close(state.clients.own[name][1], tensor)
        assert not torch.allclose(state.clients.own[name][1], uninformed.own[name])


def test_impossible_parameters_and_models_are_refused():
    for parameters in ({"beta": -0.1}, {"gamma": 1.1}, {"gamma": -0.1}):
        with pytest.raises(UserError, match="must"):
            UGSA(**parameters)
    dense = Network(nn.Conv2d(3, 4, 3))
    with pytest.raises(UserError, match=r"needs a model that ends in nn.Linear: use ugsa.uncertainty=ensemble"):
        UGSA("dropout").check(dense, {})
    UGSA("ensemble").check(dense, {})
