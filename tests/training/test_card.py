"""A card tells how weights came to be, as plain JSON."""

from __future__ import annotations

import json

import pytest

from fedctta.models import build
from fedctta.training.card import make_card
from fedctta.training.recipe import Recipe


def test_card_is_plain_json():
    module, recipe = build("resnet8-w16", classes=2, seed=1), Recipe(epochs=4)
    card = make_card("resnet8-w16", "shapes", module, recipe, "cpu", 0.9, {"fog": 0.4, "snow": 0.6}, severity=5)
    assert json.loads(json.dumps(card)) == card
    assert card["accuracy_corrupted"] == pytest.approx(0.5)
    assert card["parameters"] == sum(p.numel() for p in module.parameters())
    assert (card["recipe"]["epochs"], card["seed"], card["severity"]) == (4, 0, 5)
    assert make_card("m", "d", module, recipe, "cpu", 0.9)["accuracy_corrupted"] is None
