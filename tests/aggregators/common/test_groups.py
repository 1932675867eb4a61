"""W by way of groups: the same as the dense matrix it stands for."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedctta.aggregators.common.groups import Groups, count_used
from fedctta.aggregators.common.mixing import mix, overall, restrict
from fedctta.uploads.robust import Robust, capped, trimmed


def random_groups(clients: int, groups: int, seed: int = 0) -> Groups:
    """Rows of W sum to one: what is taken and what is left do, and so does what is given to every group."""
    generator = torch.Generator().manual_seed(seed)
    takes = torch.rand(clients, groups + 1, generator=generator).softmax(1)
    gives = torch.rand(groups, clients, generator=generator)
    return Groups(takes[:, :-1], gives / gives.sum(1, keepdim=True), takes[:, -1])


def models(clients: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(9)
    kernels = torch.randn(clients, 3, 2, 4, 4, generator=generator)
    spread = kernels.movedim(2, -1).contiguous().movedim(-1, 2)  # rows not in the order of their dimensions
    return {
        "vector": torch.randn(clients, 7, generator=generator),
        "number": torch.randn(clients, generator=generator),
        "kernels": spread,
        "part": torch.randn(clients, 9, generator=generator)[:, 2:5],
    }


def test_mixing_by_hand():
    """One group of clients 0 and 1, from which 0 takes all and 1 half; 2 is alone."""
    weights = Groups(torch.tensor([[1.0], [0.5], [0.0]]), torch.tensor([[0.25, 0.75, 0.0]]), torch.tensor([0, 0.5, 1]))
    expected = [[0.25, 0.75, 0], [0.125, 0.875, 0], [0, 0, 1]]
    assert overall(weights, {}).tolist() == expected
    assert weights.diagonal().tolist() == [0.25, 0.875, 1]
    assert mix(weights, {"a": torch.tensor([[4.0], [8.0], [1.0]])})["a"].tolist() == [[7], [7.5], [1]]


@given(st.integers(1, 8), st.integers(0, 4), st.integers(0, 99))
def test_mixing_is_that_of_the_matrix(clients, groups, seed):
    weights, own = random_groups(clients, groups, seed), models(clients)
    torch.testing.assert_close(weights.matrix().sum(1), torch.ones(clients))
    torch.testing.assert_close(weights.diagonal(), weights.matrix().diagonal())
    mixed, dense = mix(weights, own), mix(weights.matrix(), own)
    for name, tensor in own.items():
        torch.testing.assert_close(mixed[name], dense[name], atol=1e-5, rtol=1e-5)
        assert mixed[name].shape == tensor.shape


@given(st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=1, max_size=8), st.integers(1, 4), st.booleans())
def test_restriction_is_that_of_the_matrix(trust, groups, all_receive):
    trust = torch.tensor(trust)
    receive = torch.ones_like(trust, dtype=torch.bool) if all_receive else trust == 1
    weights = random_groups(len(trust), groups)
    found = restrict(weights, receive, trust)
    torch.testing.assert_close(overall(found, {}), restrict(weights.matrix(), receive, trust))


def test_a_row_left_without_weight_falls_back_to_itself():
    weights = Groups(torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([0.0, 1.0]))
    alone = restrict(weights, torch.tensor([True, True]), torch.tensor([1.0, 0.0]))
    assert overall(alone, {}).tolist() == [[1, 0], [0, 1]]


def test_one_for_each_tensor_is_restricted_and_reported_as_matrices_are():
    one, two, own = random_groups(5, 2), random_groups(5, 3, 1), models(5)
    weights = {"vector": one, "number": two, "kernels": one, "part": two}
    dense = {name: w.matrix() for name, w in weights.items()}
    active = torch.tensor([True, True, False, True, True])
    found, expected = restrict(weights, active), restrict(dense, active)
    assert found["vector"] is found["kernels"]
    torch.testing.assert_close(overall(found, own), overall(expected, own))
    torch.testing.assert_close(mix(found, own), mix(expected, own), atol=1e-5, rtol=1e-5)


def test_guards_treat_it_as_its_matrix():
    weights, own = random_groups(6, 2), models(6)
    torch.testing.assert_close(capped(weights, 0.15), capped(weights.matrix(), 0.15))
    torch.testing.assert_close(trimmed(weights, own, 0.2), trimmed(weights.matrix(), own, 0.2))
    sent = {name: tensor + 1 for name, tensor in own.items()}
    for way in ("none", "clip"):
        guard = Robust(way)
        expected = guard.mix(weights.matrix(), own, sent)
        torch.testing.assert_close(guard.mix(weights, own, sent), expected, atol=1e-5, rtol=1e-5)


def test_groups_from_which_nobody_takes_are_left_out():
    weights = random_groups(4, 5)
    weights.takes[:, [1, 3, 4]] = 0
    assert count_used(weights.takes) == 3  # those in between stay
    rows = torch.rand(4, 6)
    torch.testing.assert_close(weights @ rows, weights.matrix() @ rows)
    weights.takes.zero_()
    assert count_used(weights.takes) == 0
    torch.testing.assert_close(weights @ rows, weights.alone[:, None] * rows)
