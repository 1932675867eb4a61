"""How tensors are read as groups of rows of channels."""

from __future__ import annotations

import pytest
import torch

from fedctta.core.rows_of_channels import find_rows

OVER = (1, 3, 4)  # of [N, B, C, H, W]


def walk(x, rows, steps):
    """Return the numbers [G, P, C] that a kernel reads from memory, by their places."""
    g, p, c = (torch.arange(n) for n in (rows.groups, rows.length, rows.channels))
    outer = g // rows.groups2 * steps[0] + g % rows.groups2 * steps[1]
    inner = p // rows.rows2 * steps[2] + p % rows.rows2 * steps[3]
    memory = torch.as_strided(x, (x.untyped_storage().nbytes() // 4,), (1,), 0)
    return memory[outer[:, None, None] + inner[:, None] + c]


def images(order, shape=(3, 2, 4, 5, 6)):
    """Return x[N, B, C, H, W] that lies in this order of memory."""
    x = torch.arange(2 * 3 * 4 * 5 * 6, dtype=torch.float32)
    places = ["NBCHW".index(axis) for axis in order]
    return x.view([shape[d] for d in places]).permute([places.index(d) for d in range(5)])


@pytest.mark.parametrize("order", ["NBHWC", "BHWNC", "BNHWC"])
@pytest.mark.parametrize("over", [OVER, (3, 4)])
def test_rows_are_the_numbers_of_a_channel(order, over):
    x = images(order)
    rows = find_rows(over, (x,))
    kept = [d for d in range(5) if d not in over]
    expected = x.permute(*kept[:-1], *over, kept[-1]).reshape(rows.groups, rows.length, 4)
    found = walk(x, rows, rows.steps[0])
    assert torch.equal(found.sort(1).values, expected.sort(1).values)


def test_two_tensors_are_walked_side_by_side():
    x, y = images("NBHWC"), images("BHWNC")
    rows = find_rows(OVER, (x, y))
    one, other = (walk(t, rows, steps) for t, steps in zip((x, y), rows.steps, strict=True))
    torch.testing.assert_close((one * other).sum(1), (x * y).sum(OVER))


def test_what_clients_share_is_read_again_for_each():
    x, shared = images("NBHWC"), torch.rand(4)
    rows = find_rows(OVER, (x,), (shared.expand(3, 4),))
    assert rows.steps[1][:2] == (0, 0)


@pytest.mark.parametrize(
    "x", [images("NBCHW"), images("NBHWC").double(), images("NBHWC")[..., 1:4, 1:5], images("NBHWC")[:, :0]]
)
def test_other_tensors_are_left_to_torch(x):
    assert find_rows(OVER, (x,)) is None
