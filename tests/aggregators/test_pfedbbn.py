"""pFedBBN's weights, by hand and as the paper writes them."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from fedctta.adapters import adapters
from fedctta.aggregators import Uploads
from fedctta.aggregators.common.mixing import restrict
from fedctta.aggregators.pfedbbn import PFedBBN
from fedctta.errors import UserError

NAMES = ("a.running_mean", "a.running_var", "b.running_mean", "b.running_var")
SERVER = SimpleNamespace(network=SimpleNamespace(statistics=dict.fromkeys(NAMES)))
ALL = torch.ones(3, dtype=torch.bool)
OWN = {
    "a.running_mean": torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]]),
    "a.running_var": torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 2.0]]),
    "b.running_mean": torch.tensor([[1.0], [2.0], [1.0]]),
    "b.running_var": torch.tensor([[1.0], [3.0], [1.0]]),
    "b.weight": torch.tensor([[0.0], [100.0], [-100.0]]),  # scales travel but do not count
}


def weigh(aggregator, own=OWN, active=ALL):
    weights, memory = aggregator.collaborate(SERVER, Uploads(own, {}, active), {})
    assert memory == {}
    return weights


def test_by_hand():
    """D_01 = ((5 + 0) / 2 + (1 + 2) / 2) / 2 = 2, D_02 = (0 + 1) / 2 / 2 = 0.25, D_12 = ((5 + 1) / 2 + 1.5) / 2."""
    distance = torch.tensor([[0, 2, 0.25], [2, 0, 2.25], [0.25, 2.25, 0]])
    torch.testing.assert_close(weigh(PFedBBN()), (-distance).softmax(1))
    torch.testing.assert_close(weigh(PFedBBN(temperature=0.1)), (-distance / 0.1).softmax(1))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 5.0])
def test_the_softmax_is_equation_8(temperature):
    generator = torch.Generator().manual_seed(0)
    own = {name: torch.rand(6, 4, generator=generator) for name in NAMES}
    weights = weigh(PFedBBN(temperature), own, torch.ones(6, dtype=torch.bool))
    for i in range(6):
        d = [
            sum(
                ((own[f"{layer}.running_{kind}"][i] - own[f"{layer}.running_{kind}"][j]).norm().item()) / 2
                for layer in ("a", "b")
                for kind in ("mean", "var")
            )
            / 2
            for j in range(6)
        ]
        near = [math.exp(-x / temperature) for x in d]
        others = sum(near) - near[i]
        self_weight = 1 / (1 + others)
        for j in range(6):
            expected = self_weight if i == j else near[j] / others * (1 - self_weight)
            assert weights[i, j].item() == pytest.approx(expected, rel=1e-5)


def test_the_absent_count_for_nothing():
    present = torch.tensor([True, True, False])
    weights = restrict(weigh(PFedBBN(), active=present), present)
    pair = weigh(PFedBBN(), {name: tensor[:2] for name, tensor in OWN.items()}, ALL[:2])
    torch.testing.assert_close(weights[:2, :2], pair)


def test_far_apart_everybody_keeps_to_himself():
    own = {"a.running_mean": torch.tensor([[0.0], [1e6], [-1e6]])}
    assert torch.equal(weigh(PFedBBN(), own), torch.eye(3))


def test_statistics_are_needed(tiny_network):
    with pytest.raises(UserError, match="bbn, bn, norm-ema, rotta or grad"):
        PFedBBN().check(tiny_network, {"1.weight": torch.ones(4)})
    for adapter in ("bbn", "bn", "norm-ema", "rotta", "grad"):
        PFedBBN().check(tiny_network, adapters.create(adapter).init(tiny_network).own)
    with pytest.raises(UserError, match="must be above 0"):
        PFedBBN(temperature=0)
