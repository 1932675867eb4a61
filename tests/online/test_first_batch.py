"""What does not fit is told on the first batch, in one line, before anything is adapted."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedctta
from fedctta.adapters import adapters
from fedctta.core.network import Network
from fedctta.errors import UserError
from fedctta.models.whole_size import WholeSize
from fedctta.online.first_batch import check_first_batch


def told(module, name, x, **parameters):
    with pytest.raises(UserError) as caught:
        check_first_batch(Network(module), adapters.create(name, parameters), x)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("outputs", [nn.Linear(4, 1), nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))])
def test_regression_is_refused(outputs):
    assert "as for regression: give a logit per class" in told(outputs, "none", torch.randn(3, 4))


def test_outputs_that_are_no_classes_are_refused():
    line = told(nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3))), "none", torch.randn(5, 4))
    assert "outputs of shape [5, 2, 3] for 5 images" in line
    assert "output=" in line


def test_inputs_that_the_model_cannot_take_are_refused():
    assert "cannot take images of 5" in told(nn.Linear(4, 3), "none", torch.randn(3, 5))
    assert "cannot take words of 4" in told(nn.Linear(4, 3), "none", {"words": torch.randn(3, 4)})


@pytest.mark.parametrize("name", [name for name, cls in adapters.classes().items() if cls.pictures])
def test_methods_for_pictures_refuse_other_data(name, tiny_module):
    assert "colour pictures [batch, 3, height, width] and a batch has tensor 1 of 3x8x8" in told(
        tiny_module, name, (torch.rand(2, 3, 8, 8),)
    )
    line = told(tiny_module, name, torch.randn(2, 3, 8, 8))
    assert "values from 0 to 1" in line
    assert "normalise inside the module, or use adapter" in line


def test_pictures_may_have_a_few_values_beyond_0_and_1(tiny_module):
    x = torch.rand(2, 3, 8, 8)
    x[0, 0, 0] = 1.1
    check_first_batch(Network(tiny_module), adapters.create("roid"), x)


class Words(nn.Module):
    """Averages the outputs of a linear layer for every word."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x).mean(1)


def test_a_classifier_that_is_none_is_found_by_the_first_pass():
    assert "needs a model that ends in nn.Linear" in told(Words(), "t3a", torch.randn(2, 5, 4))


@pytest.mark.parametrize("name", ["bn", "tent", "recall", "none", None])
def test_a_dense_model_must_predict_every_pixel(name, tiny_module):
    def made(stride):
        return nn.Sequential(nn.Conv2d(3, 8, 3, stride, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))

    x = torch.rand(2, 3, 8, 8)
    for module, line in (
        (made(2), r"predicts 16 pixels for images of 3x8x8: wrap it in WholeSize"),
        (tiny_module, r"gives one prediction for images of 3x8x8: drop dense=True"),
    ):
        model = fedctta.adapt(module, name, dense=True)
        for _ in range(2):
            with pytest.raises(UserError, match=line):
                model(x)
        assert model.health.batches == 0
    for module in (made(1), WholeSize(made(2))):
        assert fedctta.adapt(module, name, dense=True)(x).shape == (2, 4, 8, 8)
