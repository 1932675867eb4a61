"""Parts that cannot be true."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedctta.books.plausibility import find_honest, find_honest_there, find_possible
from fedctta.books.rows import WEIGHTS, Layout
from fedctta.core.appearance import NUMBERS

LAYOUT = Layout(2)


def row(**changed):
    """A part of twenty images that can be true, with some sums changed."""
    true = {
        "images": torch.tensor([20.0]),
        "look": torch.full((NUMBERS,), 10.0),
        "square": torch.full((NUMBERS,), 25.0),
        "scored": torch.tensor([16.0]),
        "doubt": torch.ones(len(WEIGHTS)),
        "measured": torch.tensor([10.0]),
        "moments": torch.tensor([5.0, -5.0, 2.0, 2.0]),
    }
    return LAYOUT.row(torch.zeros(1), **(true | changed))


def test_what_can_be_true_passes():
    assert find_possible(LAYOUT, torch.stack([row(), 1e3 * row(), torch.zeros(LAYOUT.width)]).numpy()).all()


@pytest.mark.parametrize(
    "changed",
    [
        {"look": torch.full((NUMBERS,), torch.nan)},
        {"moments": torch.tensor([torch.inf, 0, 0, 0])},
        {"images": torch.tensor([-20.0])},
        {"images": torch.tensor([5.0])},  # fewer than measured
        {"scored": torch.tensor([-1.0])},
        {"measured": torch.tensor([21.0])},
        {"square": torch.full((NUMBERS,), 1.0)},
        {"doubt": torch.tensor([-1.0, 1, 1])},
        {"moments": torch.tensor([200.0, 200.0, 4000.0, 4000.0])},
        {"moments": torch.tensor([5.0, -5.0, -9.0, 2.0])},  # a variance below zero
        {"moments": torch.tensor([0.0, 0.0, 9e3, 9e3])},
    ],
)
def test_what_cannot_be_true_does_not(changed):
    assert not find_possible(LAYOUT, row(**changed).numpy())


def test_a_part_turned_negative_cannot_be_true():
    assert not find_possible(LAYOUT, -row().numpy())


def test_nobody_sees_more_than_time_allows_nor_has_two_domains_of_one_name():
    rows = torch.stack([row(), row()])[None]
    names, versions, late, soon = (
        torch.tensor([[3, 4]]),
        torch.tensor([[20, 30]]),
        torch.tensor([40]),
        torch.tensor([30]),
    )
    assert find_honest(LAYOUT, rows, names, versions, late).all()
    assert not find_honest(LAYOUT, rows, names, versions, soon).any()
    assert not find_honest(LAYOUT, rows, torch.tensor([[3, 3]]), versions, late).any()
    assert not find_honest(LAYOUT, rows, names, torch.tensor([[-1, 40]]), late).any()
    assert not find_honest(LAYOUT, rows, names, torch.tensor([[20, 41]]), late).any()  # of the future


def test_one_part_that_cannot_be_true_is_enough():
    rows = torch.stack([torch.stack([row(), -row()]), torch.stack([row(), row()])])
    times = torch.full((2, 2), 99), torch.full((2,), 99)
    assert find_honest(LAYOUT, rows, torch.tensor([[3, 4], [3, 4]]), *times).tolist() == [False, True]
    assert find_honest(LAYOUT, rows, torch.tensor([[3, 0], [3, 4]]), *times).tolist() == [True, True]  # not sent


WRONG = [
    {},
    {"look": torch.full((NUMBERS,), torch.nan)},
    {"moments": torch.tensor([torch.inf, 0, 0, 0])},
    {"images": torch.tensor([-20.0])},
    {"measured": torch.tensor([21.0])},
    {"square": torch.full((NUMBERS,), 1.0)},
    {"doubt": torch.tensor([-1.0, 1, 1])},
    {"unusual": torch.tensor([-9.0, 1, 1])},
    {"moments": torch.tensor([5.0, -5.0, -9.0, 2.0])},
    {"moments": torch.tensor([0.0, 0.0, 9e3, 9e3])},
]


@given(
    st.lists(st.lists(st.integers(0, len(WRONG) - 1), min_size=2, max_size=2), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), min_size=8, max_size=8),
    st.lists(st.integers(0, 50), min_size=12, max_size=12),
)
def test_pytorch_finds_the_same(kinds, names, times):
    count = len(kinds)
    rows = torch.stack([torch.stack([row(**WRONG[kind]) for kind in pair]) for pair in kinds])
    names, versions = torch.tensor(names).view(4, 2)[:count], torch.tensor(times[:8]).view(4, 2)[:count]
    told = (LAYOUT, rows, names, versions, torch.tensor(times[8:])[:count])
    assert torch.equal(find_honest_there(*told), find_honest(*told))
