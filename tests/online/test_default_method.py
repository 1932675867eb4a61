from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import fedctta
from fedctta.adapters import adapters
from fedctta.core.network import Network
from fedctta.online.default_method import choose_default


def make(*norm):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), *norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def test_the_default_fits_or_says_why_not():
    assert choose_default(Network(make(nn.BatchNorm2d(4)))) == ("recall", "")
    name, why = choose_default(Network(make(nn.GroupNorm(2, 4))))
    assert not adapters.classes()[name].adapts
    assert "needs BatchNorm layers and this model has none" in why


def test_a_model_with_batchnorm_recalls():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = fedctta.adapt(make(nn.BatchNorm2d(4)))
        model(torch.rand(4, 3, 8, 8))
    assert model.adapter.name == "recall"
    assert model.client.private["part"][:, 0].sum() == 4


def test_a_model_without_is_predicted_as_it_is():
    module = make(nn.GroupNorm(2, 4)).eval()
    with pytest.warns(UserWarning, match="predicts without adapting"):
        model = fedctta.adapt(module)
    x = torch.rand(4, 3, 8, 8)
    torch.testing.assert_close(model(x), module(x))


def test_images_that_the_default_cannot_take_are_predicted_without_adapting():
    module = make(nn.BatchNorm2d(4)).eval()
    x = 4 * torch.randn(4, 3, 8, 8)
    model = fedctta.adapt(module)
    with pytest.warns(UserWarning, match="values from 0 to 1 .* normalise inside the module.* without adapting"):
        logits = model(x)
    torch.testing.assert_close(logits, module(x))
    assert model.adapter.name == "none"


def test_a_method_that_was_asked_for_does_not_give_way():
    x = 4 * torch.randn(4, 3, 8, 8)
    for given in ({"method": "recall"}, {"domains": 8}):
        with pytest.raises(fedctta.errors.UserError, match="values from 0 to 1"):
            fedctta.adapt(make(nn.BatchNorm2d(4)), **given)(x)
    assert fedctta.adapt(make(nn.BatchNorm2d(4)), domains=8).adapter.domains == 8
