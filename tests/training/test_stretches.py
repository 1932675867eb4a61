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
from fedctta.training.stretches import Stretches, hash_weights

RECIPE = Recipe(epochs=4, batch=8, lr=0.05)


class Stop(Exception):
    """Ends a training from outside."""


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (24, 32, 32, 3), dtype=np.uint8), rng.integers(0, 2, 24)


def learn(data, path, recipe=RECIPE, stop_in=None, every=0.0, seed=0, **identity):
    epochs = []

    def on_progress(done, total, loss):
        epochs.append(done)
        if done == stop_in:
            raise Stop

    module = build("resnet8-w16", 2, seed=seed)
    stretches = None if path is None else Stretches(path, identity, every)
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


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"recipe": Recipe(epochs=5, batch=8, lr=0.05)}, "epochs"),
        ({"seed": 1}, "starting weights"),
        ({"train": "sketch", "size": 32}, "train, size"),
    ],
)
def test_another_training_is_refused_in_one_line(change, told, data, tmp_path):
    path = tmp_path / "place.safetensors"
    identity = {"train": "photo", "size": None}
    learn(data, path, stop_in=2, **identity)
    refusal = rf"is of another training \(with other {told}\): give the same keys and data, or another checkpoint$"
    with pytest.raises(UserError, match=refusal):
        learn(data, path, **identity | change)
    assert learn(data, path, **identity)[1][0] == 2


@pytest.mark.parametrize("content", [b"", b"not tensors", bytes(64)])
def test_a_damaged_file_is_refused_in_one_line(content, data, tmp_path):
    path = tmp_path / "place.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        learn(data, path)


def test_weights_are_told_apart_by_shapes_and_values():
    one = hash_weights(build("resnet8-w16", 2))
    assert one == hash_weights(build("resnet8-w16", 2).to(memory_format=torch.channels_last))
    assert one != hash_weights(build("resnet8-w16", 2, seed=1))
    assert one != hash_weights(build("resnet8-w16", 3))
