"""Losses by hand."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from fedctta.adapters.common.losses import cosine, cross_entropy, entropy, symmetric_cross_entropy

EVEN, THREE_TO_ONE = torch.zeros(2), torch.tensor([math.log(3.0), 0.0])


def test_entropy():
    torch.testing.assert_close(entropy(EVEN), torch.tensor(math.log(2)))
    torch.testing.assert_close(entropy(THREE_TO_ONE), torch.tensor(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25))))


def test_cross_entropy_with_another_model():
    torch.testing.assert_close(cross_entropy(EVEN, THREE_TO_ONE), torch.tensor(math.log(2)))
    expected = -(0.5 * math.log(0.75) + 0.5 * math.log(0.25))
    torch.testing.assert_close(cross_entropy(THREE_TO_ONE, EVEN), torch.tensor(expected))
    torch.testing.assert_close(symmetric_cross_entropy(THREE_TO_ONE, EVEN), torch.tensor((expected + math.log(2)) / 2))
    torch.testing.assert_close(cross_entropy(THREE_TO_ONE, THREE_TO_ONE), entropy(THREE_TO_ONE))


def test_cosine_of_a_zero_vector_is_zero():
    assert cosine(torch.zeros(3), torch.ones(3)) == 0
    torch.testing.assert_close(cosine(torch.tensor([1.0, 0]), torch.tensor([1.0, 1])), torch.tensor(0.5**0.5))
    a, b = torch.rand(2, 4, 5)
    torch.testing.assert_close(cosine(a, b), F.cosine_similarity(a, b))
