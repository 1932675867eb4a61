"""Training learns, repeats and refuses; losses by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedctta.errors import UserError
from fedctta.models import build
from fedctta.training.central import compute_loss, divergence, evaluate, make_optimizer, train
from fedctta.training.pairs import Pairing
from fedctta.training.recipe import LAYER_NORM, RECIPES, Recipe

SHORT = Recipe(epochs=4, batch=32, lr=0.1)


def stripes(n: int = 192) -> tuple[np.ndarray, np.ndarray]:
    """Noisy images that are bright in the upper (class 0) or the lower half (class 1)."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, n)
    images = rng.integers(0, 100, (n, 32, 32, 3), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[16 * label : 16 * label + 16] += 100
    return images, labels


def fresh() -> nn.Module:
    return build("resnet8-w16", classes=2, seed=1)


@pytest.mark.parametrize(
    "recipe",
    [
        SHORT,
        replace(RECIPES["paper"], epochs=4, batch=32),
        replace(LAYER_NORM, epochs=4, batch=32),
        replace(RECIPES["augmix"], epochs=4, batch=32),
        replace(RECIPES["augmix"], epochs=4, batch=32, consistency=12.0),
        replace(SHORT, epochs=8, augment="resized", start_size=0.5),
        replace(LAYER_NORM, epochs=8, batch=32, pairs=0.5),
    ],
)
def test_learns_a_separable_problem(recipe):
    images, labels = stripes()
    losses: list[tuple[int, int, float]] = []
    module = train(fresh(), images, labels, recipe, on_progress=lambda *args: losses.append(args))
    assert not module.training
    assert [(done, total) for done, total, _ in losses] == [(k + 1, recipe.epochs) for k in range(recipe.epochs)]
    assert losses[-1][2] < losses[0][2]
    assert evaluate(module, images, labels, batch=50) > 0.95


@pytest.mark.parametrize("augment", ["crop+flip", "resized", "augmix"])
def test_seed_decides_everything(augment):
    images, labels = stripes(64)
    recipe = replace(SHORT, epochs=1, augment=augment, pairs=0.5)
    one, same, other = (train(fresh(), images, labels, replace(recipe, seed=seed)).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["head.weight"], other["head.weight"])


def test_images_grow_and_the_loss_of_pairs_has_both_labels(monkeypatch):
    """A network that always answers 0 loses -log softmax(0)_y; one that sees the sides of its images tells them."""

    class Sees(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias, self.sides = nn.Parameter(torch.zeros(2)), []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.sides.append(tuple(x.shape[2:]))
            return self.bias.expand(len(x), 2)

    images, labels = stripes(32)
    module = Sees()
    train(module, images, labels, replace(SHORT, epochs=5, lr=1e-9, start_size=0.5))
    assert module.sides == [(16, 16), (24, 24), (24, 24), (32, 32), (32, 32)]
    train(module, images, labels, replace(SHORT, epochs=1, lr=1e-9, start_size=0.5))
    assert module.sides[-1] == (32, 32)
    targets, losses = torch.tensor([0, 1, 1, 1]), []
    monkeypatch.setattr("fedctta.training.central.draw_pairings", lambda *_: [Pairing(0.75)])
    with torch.no_grad():
        module.bias.copy_(torch.tensor([0.0, math.log(3)]))
    train(module, images[:4], targets, replace(SHORT, epochs=1), on_progress=lambda *args: losses.append(args[2]))
    pairs = zip([0, 1, 1, 1], [1, 0, 1, 1], strict=True)  # its own label, and that of the image before it
    expected = -sum(0.75 * math.log((1, 3)[own] / 4) + 0.25 * math.log((1, 3)[other] / 4) for own, other in pairs) / 4
    assert losses == [pytest.approx(expected)]


def test_fewer_images_than_a_batch():
    images, labels = stripes(10)
    recipe = replace(SHORT, epochs=1, schedule="constant")  # the only step of one cycle would have a rate of 0
    few, exactly = (train(fresh(), images, labels, replace(recipe, batch=batch)).state_dict() for batch in (32, 10))
    assert all(torch.equal(few[name], exactly[name]) for name in few)
    assert not torch.equal(few["head.weight"], fresh().state_dict()["head.weight"])


def test_divergence_is_an_error():
    images, labels = stripes(64)
    recipe = replace(SHORT, lr=1e30, schedule="constant", epochs=3)
    with pytest.raises(UserError, match=r"diverged in epoch \d.*lower the recipe's lr"):
        train(fresh(), images, labels, recipe)


def test_images_and_labels_must_pair():
    images, labels = stripes(8)
    for function in (
        lambda: train(fresh(), images, labels[:5], SHORT),
        lambda: evaluate(fresh(), images[:0], []),
    ):
        with pytest.raises(UserError, match="as many of each"):
            function()


def test_evaluate_counts_and_keeps_the_mode():
    class Brightest(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean((2, 3))

    images = np.zeros((5, 4, 4, 3), dtype=np.uint8)
    images[:, :, :, 1] = 9
    module = Brightest()
    assert evaluate(module, images, np.array([1, 1, 1, 0, 2]), batch=2) == 3 / 5
    assert module.training


def test_divergence_by_hand():
    p = torch.tensor([[0.5, 0.5], [0.9, 0.1], [0.1, 0.9]])
    expected = sum(p[v, k] * (p[v, k] / 0.5).log() for v in range(3) for k in range(2)) / 3
    torch.testing.assert_close(divergence(p.log()[:, None]), expected)
    assert divergence(p.log()[:1, None].expand(3, 4, 2)) == pytest.approx(0, abs=1e-6)


def test_the_loss_is_of_the_clean_view_and_the_agreement_of_all():
    logits, targets = torch.randn(12, 5, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 4, 2, 2])
    recipe = replace(SHORT, augment="augmix", consistency=3.0)
    expected = F.cross_entropy(logits[:4], targets) + 3 * divergence(logits.view(3, 4, 5))
    torch.testing.assert_close(compute_loss(logits, targets, recipe), expected)
    torch.testing.assert_close(compute_loss(logits[:4], targets, SHORT), F.cross_entropy(logits[:4], targets))


def test_bf16_learns_alike():
    images, labels = stripes(64)
    module = train(fresh(), images, labels, replace(SHORT, epochs=1), bf16=True)
    assert {tensor.dtype for tensor in module.parameters()} == {torch.float32}


def test_adamw_lets_matrices_decay_and_vectors_not():
    module = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    for weight in module.parameters():
        nn.init.ones_(weight)
        weight.grad = torch.zeros_like(weight)
    make_optimizer(module, replace(LAYER_NORM, lr=0.5, weight_decay=0.2), fused=False).step()
    assert module[0].weight.unique().item() == pytest.approx(0.9)
    assert all((weight == 1).all() for weight in (module[0].bias, module[1].weight, module[1].bias))
    assert make_optimizer(nn.LayerNorm(2), LAYER_NORM, fused=False).param_groups[0]["weight_decay"] == 0


@pytest.mark.gpu
@pytest.mark.parametrize("augment", ["crop+flip", "resized", "augmix"])
def test_cuda_learns_and_repeats(augment):
    images, labels = stripes()
    recipe = replace(SHORT, augment=augment)
    one, same = (train(fresh(), images, labels, recipe, "cuda") for _ in range(2))
    assert evaluate(one, images, labels, "cuda") > 0.95
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), same.state_dict().values(), strict=True))


@pytest.mark.gpu
def test_cuda_learns_in_bf16():
    images, labels = stripes()
    assert evaluate(train(fresh(), images, labels, SHORT, "cuda", bf16=True), images, labels, "cuda") > 0.95


def test_series_are_learnt_and_not_cropped():
    series = np.random.default_rng(0).normal(size=(64, 6, 20)).astype(np.float32)
    labels = (series[:, 0].mean(-1) > 0).astype(np.int64)
    module = build("conv1d", 2)
    recipe = Recipe(epochs=12, batch=16, optimizer="adam", lr=3e-3, weight_decay=0.0, augment="none")
    before = evaluate(module, series, labels)
    assert evaluate(train(module, series, labels, recipe), series, labels) > max(0.9, before)
    for wrong, message in (
        (Recipe(epochs=1), "augment=crop\\+flip is for images"),
        (replace(recipe, pairs=0.5), "pairs and start_size are for images"),
        (replace(recipe, start_size=0.5), "pairs and start_size are for images"),
    ):
        with pytest.raises(UserError, match=message):
            train(module, series, labels, wrong)
