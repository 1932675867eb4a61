"""Batches that are too small for a method are seen among the last images."""

from __future__ import annotations

import pytest
import torch

import fedctta
from fedctta.core.network import Network
from fedctta.errors import UserError


def test_small_batches_are_seen_among_the_last_images(tiny_module, batches):
    model = fedctta.adapt(tiny_module, "tent", window=4, guard="off")
    images = batches(2).flatten(0, 1)
    logits = [model(image[None]) for image in images]
    with torch.no_grad():
        for k in range(3):  # too few to know: the source model
            assert torch.equal(logits[k], Network(tiny_module)({}, images[k : k + 1]).logits)
    whole = fedctta.adapt(tiny_module, "tent", guard="off")
    assert torch.equal(logits[3], whole(images[:4])[-1:])
    assert torch.equal(logits[7], whole(images[4:])[-1:])
    assert model.health.batches == 2


def test_a_method_that_needs_many_images_at_once_waits_for_as_many(tiny_module, batches):
    model = fedctta.adapt(tiny_module, "cola", least=4, window=5, guard="off")
    images = batches(2).flatten(0, 1)
    for image in images[:4]:
        assert model(image[None]).shape == (1, 3)
    assert model.health.batches == 0
    model(images[4:5])
    assert model.health.batches == 1
    assert fedctta.adapt(tiny_module, "bn", momentum=0.5)(images[:1]).shape == (1, 3)


def test_a_ragged_last_batch_is_predicted(tiny_module, batches):
    for name in ("tent", "bn", "norm-ema", "none"):
        model = fedctta.adapt(tiny_module, name, **({"window": 4} if name in ("tent", "bn") else {}))
        model(batches()[0])
        assert model(batches()[1][:1]).shape == (1, 3)
        assert model(batches()[1][:3]).shape == (3, 3)


def test_a_small_batch_after_large_ones_is_not_a_reason_to_adapt_to_those_again(tiny_module, batches):
    model = fedctta.adapt(tiny_module, "tent", window=4, guard="off")
    images = batches(3, 2).flatten(0, 1)
    model(images[:4])
    own = model.client.own
    model(images[4:5])
    assert model.client.own is own
    for k in range(1, 4):
        model(images[k : k + 1])
    assert model.health.batches == 2


def test_without_a_window_a_small_batch_is_refused_with_methods_that_can(tiny_module, batches):
    model = fedctta.adapt(tiny_module, "tent", window=0)
    with pytest.raises(UserError, match=r"use batch=2 or more, or adapter .*norm-alpha.*window=16"):
        model(batches()[0][:1])


def test_a_window_forgets_images_of_another_shape(tiny_module, batches):
    model = fedctta.adapt(tiny_module, "tent", window=2)
    model(batches()[0])
    with torch.no_grad():
        x = batches(side=8)[0, :1]
        assert torch.equal(model(x), Network(tiny_module)({}, x).logits)
