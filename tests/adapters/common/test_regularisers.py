"""The terms that FedProx, MOON and pFedSD add, by hand."""

from __future__ import annotations

import math

import torch

from fedctta.adapters.common.regularisers import contrast, proximal, self_distillation


def test_the_proximal_term_by_hand():
    weights = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(3.0)}
    received = {"a": torch.tensor([0.0, 4.0]), "b": torch.tensor(1.0), "statistics": torch.tensor(9.0)}
    assert proximal(weights, received).item() == 0.5 * (1 + 4 + 4)


def test_the_proximal_gradient_is_the_distance_and_vanishes_at_the_received_model():
    received = {"a": torch.tensor([1.0, -2.0])}
    gradient = torch.func.grad(proximal)
    assert gradient({"a": torch.tensor([1.5, -2.0])}, received)["a"].tolist() == [0.5, 0.0]
    assert gradient(received, received)["a"].tolist() == [0.0, 0.0]


def test_the_contrast_by_hand():
    z = torch.tensor([[1.0, 0.0]])
    received, previous = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    expected = -math.log(math.exp(1 / 0.5) / (math.exp(1 / 0.5) + math.exp(0 / 0.5)))
    assert abs(contrast(z, received, previous, 0.5).item() - expected) < 1e-6
    assert abs(contrast(z, received, received, 0.5).item() - math.log(2)) < 1e-6


def test_self_distillation_by_hand():
    previous, logits = torch.tensor([[math.log(3.0), 0.0]]), torch.zeros(1, 2)  # teacher (3/4, 1/4), student even
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert abs(self_distillation(logits, previous, 1.0).item() - expected) < 1e-6
    assert self_distillation(previous, previous, 2.0).item() == 0
    assert abs(self_distillation(2 * logits, 2 * previous, 2.0).item() - 4 * expected) < 1e-5
