"""Blocks of columns of one matrix are copied all at once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedctta.core import column_blocks
from fedctta.core.column_blocks import close_gaps, gather_blocks, list_places

WIDTHS = st.lists(st.integers(0, 4), min_size=1, max_size=6)


@given(st.integers(1, 5), WIDTHS)
def test_blocks_have_no_gaps(rows, widths):
    matrix = torch.randn(rows, sum(widths))
    blocks = gather_blocks(matrix, tuple(widths), list_places(rows, tuple(widths)))
    assert all(block.is_contiguous() for block in blocks)
    for block, expected in zip(blocks, torch.split(matrix, widths, 1), strict=True):
        assert torch.equal(block, expected)


@given(st.integers(1, 4), WIDTHS, WIDTHS, st.randoms(), st.booleans())
def test_all_tensors_keep_their_values_and_places(rows, some, others, random, transposed):
    """Of two matrices, a part of one, and tensors that are no blocks, in any order."""
    one, two = torch.randn(rows, sum(some)), torch.randn(rows + 1, sum(others) + 2)
    tensors = [*torch.split(one, some, 1), *torch.split(two[:, 1:-1], others, 1), torch.randn(3), one.T]
    tensors += [torch.randn(3, 2, 2), two.T if transposed else two, torch.randn(rows, 9).double()[:, 2:4]]
    random.shuffle(tensors)
    closed = close_gaps(tensors)
    assert len(closed) == len(tensors)
    for found, tensor in zip(closed, tensors, strict=True):
        assert torch.equal(found, tensor)


def test_only_what_lies_side_by_side_is_copied(monkeypatch):
    matrix = torch.randn(3, 10)
    a, b, far = matrix[:, :2], matrix[:, 2:5], matrix[:, 7:]
    closed = close_gaps([b, far, a])
    assert closed[1] is far
    assert closed[0].is_contiguous()
    assert closed[2].is_contiguous()
    assert closed[2].untyped_storage().data_ptr() == closed[0].untyped_storage().data_ptr()  # one copy for both
    monkeypatch.setattr(column_blocks, "MOST", 14)
    assert all(found is given for found, given in zip(close_gaps([b, a]), [b, a], strict=True))


@pytest.mark.gpu
def test_a_graph_copies_the_blocks_that_are_known_at_once():
    column_blocks._places.clear()
    matrix = torch.randn(8, 300, device="cuda")
    blocks, graph = torch.split(matrix, [3] * 100, 1), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        unknown, _ = close_gaps(blocks), matrix + 1
    assert all(found is block for found, block in zip(unknown, blocks, strict=True))
    assert all(map(torch.equal, close_gaps(blocks), blocks))
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        closed = close_gaps(blocks)
    matrix.add_(1)
    graph.replay()
    assert all(map(torch.equal, closed, blocks))
    assert all(block.is_contiguous() for block in closed)
