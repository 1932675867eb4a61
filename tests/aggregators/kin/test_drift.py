"""Who counts, how models drift and what is pulled back, by hand."""

from __future__ import annotations

import pytest
import torch

from fedctta.aggregators.common.groups import Groups
from fedctta.aggregators.kin.drift import drift, pull_all, pull_to_source, relied_on

# Clients 0 and 1 are kin, 2 is alone.
PAIR = Groups(torch.tensor([[1.0], [1.0], [0.0]]), torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([0.0, 0.0, 1.0]))


def test_who_is_alone_does_not_count():
    assert relied_on(PAIR).tolist() == [0.5, 0.5, 0]


@pytest.mark.parametrize("count", [1, 3])
def test_all_count_alike_where_nobody_has_kin(count):
    nobody = Groups(torch.zeros(count, 2), torch.zeros(2, count), torch.ones(count))
    torch.testing.assert_close(relied_on(nobody), torch.full((count,), 1 / count))
    own = Groups(torch.eye(count), torch.eye(count), torch.zeros(count))  # a domain each
    torch.testing.assert_close(relied_on(own), torch.full((count,), 1 / count))


def test_drift_by_hand():
    """Half to W, half to the mean of those who are relied on; everybody at a pace of its own."""
    weights = drift(PAIR, relied_on(PAIR), torch.tensor([0.2, 0.0, 0.4])).matrix()
    expected = torch.tensor([[0.8 + 0.1, 0.1, 0.0], [0.0, 1.0, 0.0], [0.1, 0.1, 0.8]])
    torch.testing.assert_close(weights, expected)


def test_a_pull_by_hand():
    """The mean of clients 0 and 1 is 4 and goes a tenth of the way to 2; their distance stays, and the absent."""
    weight, active = 0.1 * relied_on(PAIR), torch.tensor([True, True, False])
    sent = pull_to_source(torch.tensor([[3.0], [5.0], [9.0]]), torch.tensor([2.0]), weight, active)
    torch.testing.assert_close(sent, torch.tensor([[2.8], [4.8], [9.0]]))


def test_nobody_is_pulled_where_nobody_counts():
    tensor = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))
    assert pull_to_source(tensor, torch.ones(2, 4), torch.zeros(3), torch.tensor([True] * 3)).equal(tensor)


def test_pulled_again_and_again_the_mean_ends_at_the_source():
    tensor, source = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([1.0, -2.0, 0.5])
    own, now = tensor - tensor.mean(0), tensor
    for _ in range(100):
        now = pull_to_source(now, source, torch.full((4,), 0.2 / 4), torch.tensor([True] * 4))
    torch.testing.assert_close(now, own + source, atol=1e-5, rtol=0)


def test_all_tensors_are_pulled_as_each_of_them():
    shapes = {"a.weight": (3,), "kernel": (2, 4), "a.bias": (5,)}
    tensors = {name: torch.randn(6, *shape) for name, shape in shapes.items()}
    source = {name: torch.randn(*shape) for name, shape in shapes.items()}
    weight, active = torch.rand(6), torch.tensor([True, False, True, True, False, True])
    pulled = pull_all(tensors, source, weight, active)
    assert pulled.keys() == tensors.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(pulled[name], pull_to_source(tensor, source[name], weight, active))
