"""A model that cannot take the images is told before anything else happens."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedctta.core.network import Network
from fedctta.errors import UserError
from fedctta.models.try_on import try_on


def test_a_model_that_fits_gives_its_logits(tiny_network):
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(try_on(tiny_network, x), tiny_network({}, x).logits)


def test_images_that_it_cannot_take_are_told_in_one_line():
    network = Network(nn.Sequential(nn.Flatten(), nn.Linear(100, 3)))
    with pytest.raises(UserError, match=r"cannot take images of 3x8x9: .*; choose one that fits") as told:
        try_on(network, torch.rand(2, 3, 8, 9))
    assert "\n" not in str(told.value)
