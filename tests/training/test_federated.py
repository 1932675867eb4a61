"""Source clients that train together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedctta.errors import UserError
from fedctta.training import federated
from fedctta.training.central import evaluate, train
from fedctta.training.federated import FederatedRecipe, divide, train_federated
from fedctta.training.recipe import RECIPES, Recipe

SHORT = Recipe(epochs=4, batch=16, lr=0.05, augment="none")
LABELS = np.arange(96) % 3
IMAGES = np.random.default_rng(0).integers(0, 100, (96, 8, 8, 3), dtype=np.uint8)
IMAGES[np.arange(96), :, :, LABELS] += 100  # class k is bright in colour k


def states_equal(a: nn.Module, b: nn.Module) -> bool:
    one, other = a.state_dict(), b.state_dict()
    return all(torch.equal(one[name], other[name]) for name in one)


def fresh() -> nn.Module:
    """Make one and the same small untrained module."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        conv, head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 3)
        return nn.Sequential(conv, nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


@pytest.mark.parametrize(
    "recipe", [SHORT, replace(SHORT, momentum=0.0), replace(RECIPES["paper"], epochs=4, batch=16, augment="crop+flip")]
)
def test_one_client_trains_as_if_there_were_no_federation(recipe):
    alone = train(fresh(), IMAGES, LABELS, recipe)
    for rounds, local in ((4, 1), (2, 2), (1, 4)):
        together = train_federated(fresh(), IMAGES, LABELS, recipe, FederatedRecipe(1, rounds, local))
        assert states_equal(alone, together)
        assert not together.training


@pytest.mark.parametrize("memory", ["averaged", "fresh"])
@pytest.mark.parametrize("skew", [float("inf"), 0.5])
@pytest.mark.parametrize("named", ["standard", "paper"])
def test_clients_learn_together_and_repeatably(named, skew, memory):
    recipe = replace(RECIPES[named], batch=8, lr=0.03, schedule="cosine", augment="none")
    how, told = FederatedRecipe(3, 3, 2, skew, memory), []
    one, same, other = (
        train_federated(
            fresh(), IMAGES, LABELS, replace(recipe, seed=seed), how, on_progress=lambda *args: told.append(args)
        )
        for seed in (0, 0, 1)
    )
    assert evaluate(one, IMAGES, LABELS) > 0.9
    assert [args[:2] for args in told[:3]] == [(1, 3), (2, 3), (3, 3)]
    assert told[2][2] < told[0][2]
    assert told[:3] == told[3:6]
    assert states_equal(one, same)
    assert not states_equal(one, other)


def test_fresh_memory_differs():
    averaged, forgotten = (
        train_federated(fresh(), IMAGES, LABELS, SHORT, FederatedRecipe(2, 2, 1, memory=memory))
        for memory in ("averaged", "fresh")
    )
    assert not states_equal(averaged, forgotten)


def test_the_server_averages_by_counts_and_keeps_integers(monkeypatch):
    """Clients whose training writes a number of their own into every tensor."""
    sizes: list[int] = []

    def mark(module: nn.Module, pixels: Tensor, *_: object) -> float:
        sizes.append(len(pixels))
        with torch.no_grad():
            for tensor in module.state_dict().values():
                tensor.fill_(len(sizes))
        return 0.0

    monkeypatch.setattr(federated, "train_epoch", mark)
    module = train_federated(fresh(), IMAGES, LABELS, SHORT, FederatedRecipe(3, 1, 1, skew=1.0))
    assert len(set(sizes)) == 3
    expected = sum((k + 1) * size for k, size in enumerate(sizes)) / 96
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, torch.full_like(tensor, expected))
        else:
            assert name.endswith("num_batches_tracked")
            assert tensor == 1


def test_every_client_starts_from_the_servers_model(monkeypatch):
    starts: list[float] = []

    def move(module: nn.Module, *_: object) -> float:
        weight = module.state_dict()["5.bias"]
        starts.append(float(weight[0]))
        weight.fill_(len(starts))
        return 0.0

    monkeypatch.setattr(federated, "train_epoch", move)
    train_federated(fresh(), IMAGES, LABELS, SHORT, FederatedRecipe(2, 2, 1))
    assert starts[0] == starts[1] == float(fresh()[5].bias[0].detach())
    assert starts[2] == starts[3] == 1.5


def test_the_learning_rate_runs_over_all_rounds(monkeypatch):
    asked: list[tuple[int, int]] = []

    def note(module: nn.Module, pixels: Tensor, targets: Tensor, recipe: Recipe, *rest: object) -> float:
        asked.append((int(rest[2]), recipe.epochs))
        return 0.0

    monkeypatch.setattr(federated, "train_epoch", note)
    train_federated(fresh(), IMAGES, LABELS, SHORT, FederatedRecipe(2, 2, 3))
    assert asked == [(e, 6) for e in (0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5)]


@pytest.mark.parametrize("skew", [float("inf"), 100.0, 0.1])
def test_every_image_goes_to_one_client(skew):
    parts = divide(LABELS, 5, skew, 0)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(96))
    assert all((np.diff(part) > 0).all() and len(part) for part in parts)


def test_skew_bends_classes_and_sizes():
    labels = np.arange(6000) % 10

    def largest_share(skew: float) -> float:
        parts = divide(labels, 10, skew, 0)
        return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))

    assert largest_share(0.1) > 0.4 > 0.3 > largest_share(1.0) > 0.15 > largest_share(float("inf"))
    assert {len(part) for part in divide(labels, 10, float("inf"), 0)} == {600}
    assert len(divide(LABELS, 50, 0.01, 0)) < 50  # some get nothing, and are left out


@pytest.mark.parametrize(("clients", "batch", "part"), [(1, 256, 256), (10, 256, 25), (100, 256, 16), (10, 8, 8)])
def test_clients_share_a_batch(clients, batch, part):
    assert FederatedRecipe(clients).share(batch) == part


def test_divergence_is_an_error():
    recipe = replace(SHORT, lr=1e30, schedule="constant")
    with pytest.raises(UserError, match=r"diverged in round \d.*lower the recipe's lr"):
        train_federated(fresh(), IMAGES, LABELS, recipe, FederatedRecipe(2, 3, 2))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"source_clients": 0}, "source_clients=0 must be at least 1"),
        ({"rounds": 0}, "rounds=0"),
        ({"local_epochs": -1}, "local_epochs=-1"),
        ({"skew": 0.0}, "skew=0.0 must be above 0"),
        ({"skew": float("nan")}, "skew=nan must be above 0"),
        ({"memory": "averagd"}, "did you mean averaged"),
        ({"source_clients": 97}, "96 images are too few for source_clients=97"),
    ],
)
def test_refuses_what_cannot_be(values, said):
    with pytest.raises(UserError, match=said):
        train_federated(fresh(), IMAGES, LABELS, SHORT, FederatedRecipe(**values))


def test_a_negative_seed_is_refused():
    with pytest.raises(UserError, match="seed=-1"):
        train_federated(fresh(), IMAGES, LABELS, replace(SHORT, seed=-1), FederatedRecipe())


@pytest.mark.gpu
def test_cuda_learns_and_repeats():
    recipe, how = replace(SHORT, lr=0.03), FederatedRecipe(4, 8, 2, 0.5)
    one, same = (train_federated(fresh(), IMAGES, LABELS, recipe, how, "cuda") for _ in range(2))
    assert evaluate(one, IMAGES, LABELS, "cuda") > 0.9
    assert states_equal(one, same)
