"""SHOT-IM: its loss by hand, and a classifier that stays."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedctta.adapters.shot import SHOT, information_loss
from fedctta.core.network import Network
from fedctta.errors import UserError


def test_the_loss_by_hand():
    certain = torch.tensor([[30.0, 0.0], [0.0, 30.0]])  # sure, and spread over both classes: the best there is
    assert information_loss(certain).item() == pytest.approx(-math.log(2), abs=1e-4)
    collapsed = torch.tensor([[30.0, 0.0], [30.0, 0.0]])
    assert information_loss(collapsed).item() == pytest.approx(0, abs=1e-4)
    assert information_loss(torch.zeros(3, 2)).item() == pytest.approx(0, abs=1e-4)


def test_steps_lower_the_loss_and_leave_the_classifier(tiny_network):
    adapter, x = SHOT(lr=1e-2), torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    client = adapter.init(tiny_network)
    assert not any(name.startswith("5.") for name in client.own)
    losses = []
    for _ in range(15):
        losses.append(information_loss(adapter.predict(tiny_network, client, x)).item())
        client = adapter.adapt(tiny_network, client, x)
    assert losses[-1] < losses[0]


def test_a_model_without_classifier_is_refused():
    with pytest.raises(UserError, match=r"ends in nn.Linear"):
        SHOT().check(Network(nn.BatchNorm2d(3)), 8)
