"""What does not fit is told on the first batch, in one line, before anything is adapted."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedctta.adapters import adapters
from fedctta.core.network import Network
from fedctta.errors import UserError
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
