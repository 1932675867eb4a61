"""The network for series: shapes, and that no scale of the sensor matters once statistics fit."""

from __future__ import annotations

import torch

from fedctta.models import build
from fedctta.models.conv1d import Conv1d


def test_series_of_any_length_and_number_of_channels():
    assert Conv1d(classes=7)(torch.rand(3, 6, 100)).shape == (3, 7)
    assert Conv1d(classes=2, channels=4)(torch.rand(3, 4, 37)).shape == (3, 2)


def test_the_first_layer_takes_out_the_scale_of_every_channel():
    module = build("conv1d", 7).train()
    x = torch.randn(16, 6, 50)
    scale, shift = torch.tensor([1.0, 10.0, 100.0, 2.0, 0.5, 9.81])[:, None], torch.arange(6.0)[:, None]
    torch.testing.assert_close(module(x * scale + shift), module(x), rtol=1e-3, atol=1e-3)
