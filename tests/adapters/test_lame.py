"""LAME: its kernel by hand, and a fixed point of its equation."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from fedctta.adapters.lame import LAME, affinity


def test_the_kernel_by_hand():
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    # distances to the 2nd nearest, oneself included: 0, sqrt 2, 0
    width = math.sqrt(2) / 3
    expected = math.exp(-2 / (2 * width**2))
    kernel = affinity(z, 2)
    torch.testing.assert_close(kernel[0], torch.tensor([1.0, expected, 1.0]))
    torch.testing.assert_close(kernel, kernel.T)


def test_predictions_satisfy_the_equation(tiny_network):
    x = torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    adapter = LAME()
    y = adapter.predict(tiny_network, adapter.init(tiny_network), x).softmax(-1)
    output = tiny_network({}, x)
    kernel = affinity(F.normalize(output.features, dim=-1), 5)
    torch.testing.assert_close(y, torch.softmax(output.logits.log_softmax(-1) + kernel @ y, -1), atol=1e-4, rtol=0)
    torch.testing.assert_close(y.sum(1), torch.ones(12))


def test_a_single_image_keeps_its_prediction(tiny_network):
    x = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    adapter = LAME()
    adapter.check(tiny_network, 1)
    before, after = tiny_network({}, x).logits, adapter.predict(tiny_network, adapter.init(tiny_network), x)
    assert before.argmax() == after.argmax()
