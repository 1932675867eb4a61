"""A network as torch compiles it gives the same logits, and what cannot be compiled is told in one line."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._dynamo.exc import TorchDynamoException

from fedctta.errors import UserError
from fedctta.models import build
from fedctta.training.central import train
from fedctta.training.compiled import compile_network
from fedctta.training.recipe import Recipe


def test_a_refusal_is_one_line(monkeypatch):
    def refuse(module, **_):
        def network(x):
            raise TorchDynamoException("no C compiler\nand a long story")

        return network

    monkeypatch.setattr(torch, "compile", refuse)
    with pytest.raises(UserError, match=r"cannot compile this network here \(no C compiler\): drop compile"):
        compile_network(torch.nn.Identity())(torch.zeros(1))


def test_training_goes_through_the_compiled_network_and_keeps_names(monkeypatch):
    batches = []

    def trace(module, *, dynamic):
        assert not dynamic
        return lambda x: batches.append(len(x)) or module(x)

    images = np.random.default_rng(0).integers(0, 256, (32, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(32) % 2
    recipe = Recipe(epochs=2, batch=16, lr=0.1)
    plain = train(build("resnet8-w16", 2), images, labels, recipe).state_dict()
    monkeypatch.setattr(torch, "compile", trace)
    compiled = train(build("resnet8-w16", 2), images, labels, recipe, compiled=True).state_dict()
    assert batches == [16] * 4
    assert all(torch.equal(plain[name], compiled[name]) for name in plain)


@pytest.mark.gpu
def test_cuda_learns_in_a_compiled_network():
    images = np.zeros((64, 32, 32, 3), np.uint8)
    labels = np.arange(64) % 2
    images[labels == 1, :16] = 200
    recipe = Recipe(epochs=6, batch=32, lr=0.1, augment="none")
    losses = []
    train(
        build("resnet8-w16", 2),
        images,
        labels,
        recipe,
        "cuda",
        lambda *args: losses.append(args[2]),
        bf16=True,
        compiled=True,
    )
    assert losses[-1] < 0.5 * losses[0]
