"""Orders of memory."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedctta.core.memory_layout import put_side_by_side, room_for, row_by_row, separate_clients


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_rows_in_any_order_without_gaps_are_row_by_row(shape, random):
    order = random.sample(range(len(shape)), len(shape))
    rows = torch.zeros(3, *(shape[axis] for axis in order)).permute(0, *(1 + order.index(k) for k in range(len(shape))))
    assert row_by_row(rows)
    room = room_for(5, rows)
    assert room.shape == (5, *shape)
    assert row_by_row(room)
    assert room[1].stride() == rows[1].stride()


def test_rows_with_gaps_and_rows_that_share_memory_are_not():
    assert not row_by_row(torch.zeros(3, 4)[:, ::2])
    assert not row_by_row(torch.zeros(4).expand(3, 4))
    assert not row_by_row(torch.zeros(3))
    assert room_for(5, torch.zeros(4).expand(3, 4)).is_contiguous()
    assert room_for(5, torch.zeros(3)).shape == (5,)
    assert room_for(5, torch.zeros(3, 0)).shape == (5, 0)


def test_clients_side_by_side_are_separated_again():
    x = torch.randn(3, 2, 4, 5, 6)
    together = put_side_by_side(x)
    assert together.shape == (2, 12, 5, 6)
    assert together.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(together[1, 4:8], x[1, 1])
    assert torch.equal(separate_clients(together, 3), x)
