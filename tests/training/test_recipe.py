"""Recipes refuse what cannot be, and learning rates by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedctta.errors import UserError
from fedctta.training.recipe import LAYER_NORM, RECIPES, Recipe, learning_rate, side_of, usual_recipe


def test_learning_rates():
    one = Recipe(lr=1.0)
    assert [learning_rate(one, s) for s in (0.0, 0.1, 0.2)] == pytest.approx([0.0, 0.5, 1.0])
    assert learning_rate(one, 0.6) == pytest.approx(0.5)
    assert learning_rate(one, 1 - 1e-9) == pytest.approx(0.0, abs=1e-6)
    assert learning_rate(replace(one, schedule="cosine"), 0.5) == pytest.approx(0.5)
    assert learning_rate(replace(one, schedule="constant"), 0.9) == 1.0


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("optimizer", "adm", "unknown optimizer 'adm': did you mean adam"),
        ("schedule", "step", "unknown schedule"),
        ("augment", "mix", "unknown augment"),
        ("epochs", 0, "above 0"),
        ("lr", float("nan"), "above 0"),
        ("momentum", 1.0, r"in \[0, 1\)"),
        ("consistency", -1.0, "0 or a number above"),
        ("consistency", 12.0, "add augment=augmix"),
        ("pairs", 1.5, r"a share of the batches in \[0, 1\]"),
        ("start_size", 0.0, r"a share of the side in \(0, 1\]"),
    ],
)
def test_recipes_are_checked(field, value, message):
    with pytest.raises(UserError, match=message):
        replace(Recipe(), **{field: value})


def test_pairs_and_views_do_not_go_together():
    with pytest.raises(UserError, match="leave consistency 0, or pairs"):
        replace(RECIPES["augmix"], consistency=1.0, pairs=0.5)


def test_sides_grow_to_the_whole_image_and_no_further():
    half = Recipe(start_size=0.5)
    sides = [side_of(half, 64, done / 100) for done in range(100)]
    assert sides == sorted(sides)
    assert (sides[0], sides[79], sides[80], sides[-1]) == (32, 56, 64, 64)
    assert {side_of(Recipe(), side, 0.0) for side in (30, 64)} == {30, 64}
    assert side_of(half, 30, 0.0) == 8
    assert side_of(half, 6, 0.0) == 6


def test_usual_recipes_are_by_model_and_data():
    assert usual_recipe("resnet8", "cifar10") is None
    assert usual_recipe("vit-tiny", "cifar10") == LAYER_NORM
    tiny = {model: usual_recipe(model, "tiny-imagenet") for model in ("resnet18", "vit-tiny", "convnext-atto")}
    assert [recipe.optimizer for recipe in tiny.values() if recipe] == ["sgd", "adamw", "adamw"]
