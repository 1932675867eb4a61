"""FedTHE's heads: the balanced loss by hand, and what each head learns."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedctta.errors import UserError
from fedctta.models.inputs import to_input
from fedctta.training.learning.heads import HeadTraining, balanced_loss, learn_heads
from fedctta.training.learning.shards import Shards


def skewed(each=20):
    """Return three source clients with two classes each, the first of them nine times as frequent."""
    random = np.random.default_rng(0)
    labels = np.stack([np.where(np.arange(each) < 0.9 * each, k, (k + 1) % 3) for k in range(3)])
    pixels = random.integers(0, 200, (3, each, 8, 8, 3)) + 30 * (labels[..., None, None, None] == np.arange(3))
    return Shards(pixels.astype(np.uint8), labels, ("clean",) * 3)


def test_the_balanced_loss_by_hand():
    head = {"weight": torch.zeros(3, 1), "bias": torch.tensor([0.0, math.log(2.0), 5.0])}
    prior = torch.tensor([3.0, 1.0, 0.0]).log()  # the third class is absent: it takes no part
    z, y = torch.ones(2, 1), torch.tensor([0, 1])
    # Odds 1 * 3 and 2 * 1: probabilities 3/5 and 2/5.
    expected = -(math.log(3 / 5) + math.log(2 / 5)) / 2
    assert balanced_loss(head, z, y, prior).item() == pytest.approx(expected, abs=1e-6)
    gradient = torch.func.grad(balanced_loss)(head, z, y, prior)
    assert gradient["bias"].tolist() == pytest.approx([0.1, -0.1, 0.0], abs=1e-6)


def test_what_is_learnt_is_what_the_adapter_reads(tiny_network):
    shards, calls = skewed(), []
    how = HeadTraining(clients=3, images=20, rounds=5, lr=0.05)
    found, losses = learn_heads(tiny_network, shards, how, lambda *call: calls.append(call))
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {
        "global.weight": (3, 4),
        "global.bias": (3,),
        "global.feature": (4,),
        "personal.weight": (3, 3, 4),
        "personal.bias": (3, 3),
        "personal.feature": (3, 4),
    }
    assert losses[-1] < losses[0]
    assert calls[-1] == (5, 5, losses[-1])
    features = torch.stack([tiny_network({}, to_input(images)).features.mean(0) for images in shards.images])
    torch.testing.assert_close(found["personal.feature"], features)
    torch.testing.assert_close(found["global.feature"], features.mean(0))


def test_personal_heads_take_on_their_clients_classes_and_the_global_one_does_not(tiny_network):
    shards = skewed()
    found, _ = learn_heads(tiny_network, shards, HeadTraining(clients=3, images=20, lr=0.05))
    everybody = tiny_network({}, to_input(shards.images.reshape(-1, 8, 8, 3))).features

    def share(weight, bias, k):
        return (everybody @ weight.mT + bias).softmax(-1)[:, k].mean().item()

    common = [share(found["global.weight"], found["global.bias"], k) for k in range(3)]
    own = [share(found["personal.weight"][k], found["personal.bias"][k], k) for k in range(3)]
    assert all(a > b + 0.1 for a, b in zip(own, common, strict=True))
    assert max(common) - min(common) < 0.3


def test_the_same_seed_gives_the_same_heads(tiny_network):
    how = HeadTraining(clients=3, images=20, rounds=2)
    first, again = (learn_heads(tiny_network, skewed(), how)[0] for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize(
    ("options", "message"), [({"rounds": 0}, "rounds=0 must"), ({"steps": 0}, "steps=0"), ({"lr": 0.0}, "lr=0.0 must")]
)
def test_refuses_impossible_options(options, message):
    with pytest.raises(UserError, match=message):
        HeadTraining(**options)
