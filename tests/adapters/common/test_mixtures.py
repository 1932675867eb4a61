"""Mixtures of domain vectors: weights, gradients and the weight of a new vector, by hand and by autograd."""

from __future__ import annotations

import math

import pytest
import torch

from fedctta.adapters.common.mixtures import combine, find_slopes, step_sign, weigh, weigh_by_distance, weigh_new

ALL = torch.ones(3, dtype=torch.bool)


def test_weights_are_a_softmax_over_those_there():
    alpha, scale = torch.tensor([0.0, math.log(3.0) / 2, 9.0]), torch.tensor(2.0)
    there = torch.tensor([True, True, False])
    torch.testing.assert_close(weigh(alpha, scale, there), torch.tensor([0.25, 0.75, 0.0]))


def test_the_source_adds_nothing_and_vectors_lie_in_several_tensors():
    one, other = torch.tensor([[1.0, 2.0]]), torch.tensor([[10.0, 0.0], [0.0, 10.0]])
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1])
    torch.testing.assert_close(combine(weights, one, other), torch.tensor([2.3, 1.6]))


def test_slopes_are_those_of_autograd():
    generator = torch.Generator().manual_seed(0)
    one, other = torch.randn(2, 5, generator=generator), torch.randn(1, 5, generator=generator)
    alpha = torch.randn(4, generator=generator).requires_grad_()
    scale, there = torch.tensor(1.3, requires_grad=True), torch.tensor([True, True, False, True])
    weights = weigh(alpha, scale, there)
    mixed = combine(weights, one, other)
    gradient = torch.autograd.grad((mixed.square() * torch.arange(5)).sum(), mixed, retain_graph=True)[0]
    expected = torch.autograd.grad((mixed.square() * torch.arange(5)).sum(), (alpha, scale))
    found = find_slopes(gradient, weights.detach(), alpha.detach(), scale.detach(), one, other)
    torch.testing.assert_close(found, expected)


def test_a_step_is_the_first_one_of_adamw():
    value = torch.tensor([0.5, -2.0, 1.0])
    gradient = torch.tensor([1e-3, -40.0, 0.0])
    weight = value.clone().requires_grad_()
    weight.grad = gradient
    torch.optim.AdamW([weight], lr=0.1, weight_decay=0.3).step()
    torch.testing.assert_close(step_sign(value, gradient, 0.1, 0.3), weight.detach())


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_new_vector_leaves_the_margin_to_epsilon(scale):
    alpha, scale = torch.tensor([0.0, 0.3, -0.2]), torch.tensor(scale)
    new = weigh_new(alpha, scale, ALL, size=torch.tensor(0.1), margin=0.01)
    weight = torch.cat([alpha, new[None]]).mul(scale).softmax(0)[-1]
    torch.testing.assert_close(weight, torch.tensor(0.9))


def test_a_new_vector_weighs_no_less_than_any_other():
    alpha, scale = torch.tensor([0.0, 3.0, 5.0]), torch.tensor(1.0)
    there = torch.tensor([True, True, False])
    assert weigh_new(alpha, scale, there, size=torch.tensor(0.005), margin=0.01) == 3
    assert weigh_new(alpha, scale, there, size=torch.tensor(0.0), margin=0.01) == 3
    assert weigh_new(alpha, scale, there, size=torch.tensor(1e9), margin=0.01) == 10
    assert weigh_new(alpha, torch.tensor(0.0), there, size=torch.tensor(1e9), margin=0.01) == 10


def test_followers_weigh_by_distance():
    distance, there = torch.tensor([0.0999, 0.1999, 0.0]), torch.tensor([True, True, False])
    found = weigh_by_distance(distance, there, temperature=5.0)  # scores 2 and 1
    torch.testing.assert_close(found, torch.tensor([2.0, 1.0, -torch.inf]).softmax(0))
    assert weigh_by_distance(distance, torch.zeros_like(there), 5.0).tolist() == [0, 0, 0]
