"""Pure optimisers against torch's own."""

from __future__ import annotations

import pytest
import torch

from fedctta.adapters.common.optimisers import adam, adam_memory, descend, momentum, momentum_memory

GRADIENTS = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))


def torchs(optimiser, **options):
    weight = torch.nn.Parameter(torch.ones(3))
    steps = optimiser([weight], lr=0.1, **options)
    for gradient in GRADIENTS:
        weight.grad = gradient.clone()
        steps.step()
    return weight.detach()


@pytest.mark.parametrize(
    ("step", "memory", "reference"),
    [
        (adam, adam_memory, lambda: torchs(torch.optim.Adam)),
        (momentum, momentum_memory, lambda: torchs(torch.optim.SGD, momentum=0.9)),
    ],
)
def test_steps_equal_those_of_torch(step, memory, reference):
    weights = {"w": torch.ones(3)}
    kept = memory(weights)
    for gradient in GRADIENTS:
        weights, kept = step(weights, {"w": gradient}, kept, 0.1)
    torch.testing.assert_close(weights["w"], reference())
    assert kept.keys() == memory(weights).keys()


def test_plain_descent():
    weights = {"w": torch.ones(3)}
    for gradient in GRADIENTS:
        weights = descend(weights, {"w": gradient}, 0.1)
    torch.testing.assert_close(weights["w"], torchs(torch.optim.SGD))
