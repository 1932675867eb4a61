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


def test_a_model_that_the_default_finds_too_coarse_is_predicted_as_it_is():
    module = make(nn.BatchNorm2d(4)).bfloat16().eval()
    with pytest.warns(UserWarning, match=r"in bfloat16: call \.float\(\) .* without adapting"):
        model = fedctta.adapt(module)
    x = torch.rand(4, 3, 8, 8).bfloat16()
    torch.testing.assert_close(model(x), module(x).float(), rtol=0.05, atol=0.05)


def test_inputs_that_the_default_cannot_take_are_predicted_without_adapting():
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).eval()
    x = torch.randn(4, 5)
    model = fedctta.adapt(module)
    with pytest.warns(UserWarning, match="looks at images .* or series .* without adapting"):
        logits = model(x)
    torch.testing.assert_close(logits, module(x))
    assert model.adapter.name == "none"


def test_the_default_takes_images_of_any_range_and_channels_and_series():
    for shape, norm in (((4, 3, 8, 8), nn.BatchNorm2d(4)), ((4, 1, 8, 8), nn.BatchNorm2d(4)), ((4, 6, 50), None)):
        first = nn.Conv2d(shape[1], 4, 3) if norm else nn.Conv1d(shape[1], 4, 3)
        pool = nn.AdaptiveAvgPool2d(1) if norm else nn.AdaptiveAvgPool1d(1)
        model = fedctta.adapt(
            nn.Sequential(first, norm or nn.BatchNorm1d(4), nn.ReLU(), pool, nn.Flatten(), nn.Linear(4, 3))
        )
        for seed in range(3):
            assert model(4 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).isfinite().all()
        assert model.adapter.name == "recall"


def test_a_method_that_was_asked_for_does_not_give_way():
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    for given in ({"method": "recall"}, {"domains": 8}):
        with pytest.raises(fedctta.errors.UserError, match="looks at images"):
            fedctta.adapt(module, **given)(torch.randn(4, 5))
    assert fedctta.adapt(make(nn.BatchNorm2d(4)), domains=8).adapter.domains == 8
