"""A training that was stopped ends with the weights of an unbroken one, and goes on from nothing else."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
import torch

from fedctta.errors import UserError
from fedctta.models import build
from fedctta.training.central import train
from fedctta.training.recipe import Recipe
from fedctta.training.stretches import Stretches, fingerprint

RECIPE = Recipe(epochs=4, batch=8, lr=0.05)


class Stop(Exception):
    """Ends a training from outside."""


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (24, 32, 32, 3), dtype=np.uint8), rng.integers(0, 2, 24)


def learn(data, path, recipe=RECIPE, stop_in=None, every=0.0):
    epochs = []

    def on_progress(done, total, loss):
        epochs.append(done)
        if done == stop_in:
            raise Stop

    module = build("resnet8-w16", 2)
    stretches = None if path is None else Stretches(path, every)
    with suppress(Stop):
        train(module, *data, recipe, on_progress=on_progress, stretches=stretches)
    return module, epochs


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_stopped_training_ends_with_the_same_weights(optimizer, data, tmp_path):
    recipe = Recipe(epochs=4, batch=8, lr=0.05 if optimizer == "sgd" else 0.001, optimizer=optimizer)
    whole, _ = learn(data, None, recipe)
    path = tmp_path / "place.safetensors"
    _, first = learn(data, path, recipe, stop_in=3)
    assert first == [1, 2, 3]  # stopped before its third epoch was saved
    resumed, second = learn(data, path, recipe)
    assert second == [3, 4]
    assert all(
        torch.equal(a, b) for a, b in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True)
    )


def test_a_short_training_writes_nothing(data, tmp_path):
    learn(data, tmp_path / "place.safetensors", every=3600)
    assert not list(tmp_path.iterdir())


def test_another_recipe_is_refused_in_one_line(data, tmp_path):
    path = tmp_path / "place.safetensors"
    learn(data, path, stop_in=2)
    with pytest.raises(UserError, match="another model or recipe: give the same keys, or another checkpoint"):
        learn(data, path, Recipe(epochs=5, batch=8, lr=0.05))


@pytest.mark.parametrize("content", [b"", b"not tensors", bytes(64)])
def test_a_damaged_file_is_refused_in_one_line(content, data, tmp_path):
    path = tmp_path / "place.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        learn(data, path)


def test_stretches_of_one_training_have_model_and_recipe_in_common():
    one = fingerprint(build("resnet8-w16", 2), RECIPE)
    assert one == fingerprint(build("resnet8-w16", 2, seed=1), RECIPE)
    assert one != fingerprint(build("resnet8-w16", 3), RECIPE)
    assert one != fingerprint(build("resnet8-w16", 2), Recipe(epochs=4, batch=8, lr=0.06))
