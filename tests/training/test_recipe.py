"""Recipes refuse what cannot be, and learning rates by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedctta.errors import UserError
from fedctta.training.recipe import Recipe, learning_rate


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
    ],
)
def test_recipes_are_checked(field, value, message):
    with pytest.raises(UserError, match=message):
        replace(Recipe(), **{field: value})
