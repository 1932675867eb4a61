"""ATP's rates: the update by hand and against finite differences, and that they help."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedctta.adapters.atp import adaptable, direction, step
from fedctta.core.network import Network
from fedctta.errors import UserError
from fedctta.models.inputs import to_input
from fedctta.training.learning.rates import RateTraining, improve, learn_rates
from fedctta.training.learning.shards import Shards


def images(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


def loss_at(network, rates, x, y, h):
    """Return the supervised loss after a step along fixed directions."""
    return F.cross_entropy(network(step(adaptable(network), h, rates), x).logits, y)


def test_the_update_by_hand():
    # Two classes, one feature x = 1, logits (w, 0): H' = -w p (1 - p), CE' = p - 1 for label 0, where p = sigmoid(w).
    network = Network(nn.Sequential(nn.Flatten(), nn.Linear(1, 2, bias=False)))
    network.state["1.weight"].copy_(torch.tensor([[1.0], [0.0]]))
    rates, loss = improve(network, torch.zeros(1), torch.ones(1, 1, 1, 1), torch.tensor([0]), 0.1)
    p = 1 / (1 + math.exp(-1))
    h, g = -p * (1 - p), p - 1  # and their opposites for the other row, sqrt(numel) = sqrt(2)
    assert rates.item() == pytest.approx(0.1 * 2 * g * h / math.sqrt(2), rel=1e-5)
    assert loss.item() == pytest.approx(-math.log(p), rel=1e-5)


def test_the_gain_is_the_fall_of_the_loss_along_each_rate(tiny_network):
    double = {name: tensor.double() for name, tensor in tiny_network.state.items()}
    tiny_network.state.update(double)
    tiny_network._module.double()
    x, y = images(6, 3, 8, 8).double(), torch.tensor([0, 1, 2, 0, 1, 2])
    source = adaptable(tiny_network)
    start = torch.linspace(-0.05, 0.05, len(source)).double()
    h = direction(tiny_network, source, x)
    found = (improve(tiny_network, start, x, y, 1.0)[0] - start).tolist()
    for number, tensor in enumerate(source.values()):
        change = torch.zeros_like(start)
        change[number] = 1e-5
        rise = loss_at(tiny_network, start + change, x, y, h) - loss_at(tiny_network, start - change, x, y, h)
        assert found[number] == pytest.approx(-rise.item() / 2e-5 / math.sqrt(tensor.numel()), rel=1e-3, abs=1e-7)


def test_no_gain_counts_for_more_than_the_limit(tiny_network):
    x, y = images(6, 3, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
    start = torch.zeros(len(adaptable(tiny_network)))
    free, held = (improve(tiny_network, start, x, y, 1.0, limit)[0] for limit in (math.inf, 1e-3))
    assert free.abs().max() > 1e-3
    assert torch.equal(held, free.clamp(-1e-3, 1e-3))


def shifted(clients=4, each=12):
    """Return source clients whose images are darker the higher their number, three classes of one colour each."""
    random = np.random.default_rng(0)
    labels = np.stack([random.permutation(np.arange(each) % 3) for _ in range(clients)])
    pixels = random.integers(0, 100, (clients, each, 8, 8, 3))
    pixels += 120 * (labels[..., None, None, None] == np.arange(3))
    pixels = pixels // (1 + np.arange(clients))[:, None, None, None, None]
    return Shards(pixels.astype(np.uint8), labels, ("dark",) * clients)


def test_rates_are_the_mean_of_those_who_took_part(tiny_network):
    shards = shifted(clients=3, each=8)
    how = RateTraining(clients=3, images=8, rounds=1, batch=4, share=1.0, eta=0.5, seed=3)
    found, losses = learn_rates(tiny_network, shards, how)
    generator = torch.Generator().manual_seed(3)
    torch.randperm(3, generator=generator)
    who = torch.randperm(3, generator=torch.Generator().manual_seed(3))
    order = torch.rand(3, 8, generator=generator).argsort(1)
    ends, seen = [], []
    for client, places in zip(who, order, strict=True):
        rates = torch.zeros(len(found))
        for chosen in places.split(4):
            x = to_input(shards.images[client][chosen])
            rates, loss = improve(tiny_network, rates, x, torch.from_numpy(shards.labels[client][chosen]), 0.5)
            seen.append(loss)
        ends.append(rates)
    torch.testing.assert_close(torch.stack(list(found.values())), torch.stack(ends).mean(0), atol=1e-6, rtol=1e-4)
    assert losses == [pytest.approx(torch.stack(seen).mean().item(), rel=1e-5)]
    assert list(found) == list(adaptable(tiny_network))


def test_rates_learnt_at_the_source_lower_the_loss(tiny_module):
    shards, calls = shifted(), []
    bright, truth = to_input(shards.images[0]), torch.from_numpy(shards.labels[0])
    optimiser = torch.optim.Adam(tiny_module.train().parameters(), lr=0.05)
    for _ in range(60):
        optimiser.zero_grad()
        F.cross_entropy(tiny_module(bright), truth).backward()
        optimiser.step()
    network = Network(tiny_module.eval())
    how = RateTraining(clients=4, images=12, rounds=40, batch=6, share=0.5)
    rates, losses = learn_rates(network, shards, how, lambda *call: calls.append(call))
    assert calls[-1] == (40, 40, losses[-1])

    def mean_loss(rates):
        each = []
        for pixels, labels in zip(shards.images, shards.labels, strict=True):
            x = to_input(pixels)
            h = direction(network, adaptable(network), x)
            each.append(loss_at(network, rates, x, torch.from_numpy(labels), h))
        return torch.stack(each).mean().item()

    assert mean_loss(torch.stack(list(rates.values()))) < 0.9 * mean_loss(torch.zeros(len(rates)))


def test_divergence_is_told(tiny_network):
    how = RateTraining(clients=4, images=12, rounds=20, batch=6, eta=1e30, limit=math.inf)
    with pytest.raises(UserError, match=r"diverged in round \d+: lower eta"):
        learn_rates(tiny_network, shifted(), how)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds=0 must"),
        ({"batch": 101}, "batch=101 must lie between 2 and images=100"),
        ({"share": 0.0}, "share=0.0 must"),
        ({"eta": 0.0}, "eta=0.0 must"),
        ({"limit": 0.0}, "limit=0.0 must"),
    ],
)
def test_refuses_impossible_options(options, message):
    with pytest.raises(UserError, match=message):
        RateTraining(**options)
