"""W gives every client a weighted mean of all models, and is restricted to those that take part."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedctta.aggregators.common.groups import Groups
from fedctta.aggregators.common.mixing import mix, overall, restrict


def test_mixing_by_hand():
    weights = torch.tensor([[0.75, 0.25], [0.0, 1.0]])
    own = {"a": torch.tensor([[1.0, 2.0], [5.0, 6.0]]), "b": torch.tensor([4.0, 8.0])}
    mixed = mix(weights, own)
    assert mixed["a"].tolist() == [[2.0, 3.0], [5.0, 6.0]]
    assert mixed["b"].tolist() == [5.0, 8.0]


@given(st.integers(1, 6), st.lists(st.integers(0, 3), max_size=3), st.integers(0, 10))
def test_mixing_equal_models_gives_them_back(clients, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(clients, clients, generator=generator).softmax(1)
    model = torch.rand(shape, generator=generator).expand(clients, *shape)
    torch.testing.assert_close(mix(weights, {"a": model})["a"], model.contiguous())


@given(st.permutations(range(1, 4)), st.integers(0, 10))
def test_mixing_keeps_the_order_in_memory(order, seed):
    weights, rows = torch.rand(3, 3, generator=torch.Generator().manual_seed(seed)), torch.rand(3, 2, 4, 3)
    laid_out = rows.permute(0, *order).contiguous().permute(0, *(1 + torch.tensor(order).argsort()).tolist())
    mixed = mix(weights, {"a": laid_out})["a"]
    assert mixed.stride() == laid_out.stride()
    torch.testing.assert_close(mixed, mix(weights, {"a": rows})["a"])


def test_one_model_for_all_is_stored_once():
    rows = torch.randn(3, 2, 4, 3, 3).movedim(2, -1).contiguous().movedim(-1, 2)
    shares = torch.tensor([0.2, 0.3, 0.5])
    mixed = mix(shares.expand(3, 3), {"a": rows})["a"]
    assert mixed.stride(0) == 0
    assert mixed[0].stride() == rows[0].stride()
    torch.testing.assert_close(mixed[2], torch.einsum("n,nabcd->abcd", shares, rows))
    one_group = Groups(torch.full((3, 1), 2.0), shares[None] / 2, torch.zeros(3))
    grouped = mix(one_group, {"a": rows})["a"]
    assert grouped.stride(0) == 0
    torch.testing.assert_close(grouped, mixed)
    kept = mix(one_group._replace(alone=torch.tensor([0.0, 0.0, 1.0])), {"a": rows})["a"]
    torch.testing.assert_close(kept, mixed + torch.stack([0 * rows[0], 0 * rows[1], rows[2]]))
    apart = mix(torch.stack([shares, shares, shares.flip(0)]), {"a": rows})["a"]
    torch.testing.assert_close(apart[:2], mixed[:2])
    torch.testing.assert_close(apart[2], torch.einsum("n,nabcd->abcd", shares.flip(0), rows))


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.integers(0, 10))
def test_tensors_with_weights_of_their_own_are_mixed_as_one_by_one(active, seed):
    present, generator = torch.tensor(active), torch.Generator().manual_seed(seed)
    clients = len(active)
    shapes = {"a": (2,), "b": (2,), "c": (3,), "d": (), "e": (2, 1, 3), "f": (2,)}
    own = {name: torch.rand(clients, *shape, generator=generator) for name, shape in shapes.items()}
    weights = {name: torch.rand(clients, clients, generator=generator).softmax(1) for name in own}
    weights["f"] = weights["a"]
    together = restrict(weights, present)
    mixed = mix(together, own)
    for name, tensor in own.items():
        alone = restrict(weights[name], present)
        torch.testing.assert_close(together[name], alone)
        torch.testing.assert_close(mixed[name], torch.tensordot(alone, tensor, 1))
    sizes = {name: tensor[0].numel() for name, tensor in own.items()}
    mean = sum(sizes[name] * together[name] for name in own) / sum(sizes.values())
    torch.testing.assert_close(overall(together, own), mean)


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.integers(0, 10))
def test_restriction_equals_a_softmax_over_those_present(active, seed):
    present = torch.tensor(active)
    scores = torch.rand(len(active), len(active), generator=torch.Generator().manual_seed(seed))
    expected = scores.masked_fill(~present[None, :], -torch.inf).softmax(1)
    expected[~present] = torch.eye(len(active))[~present]
    torch.testing.assert_close(restrict(scores.softmax(1), present), expected)


def test_a_row_left_without_weight_falls_back_to_itself():
    weights = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    assert restrict(weights, torch.tensor([True, False])).tolist() == [[1, 0], [0, 1]]
