"""How the rows of a stack of tensors lie in memory: one after another, but each in an order of its own."""

from __future__ import annotations

from torch import Tensor


def row_by_row(tensor: Tensor) -> bool:
    """Whether rows lie one after another in memory, each without gaps, whatever the order within."""
    if tensor.dim() < 2 or not tensor.numel():
        return False
    room = 1
    for stride, size in sorted(zip(tensor.stride()[1:], tensor.shape[1:], strict=True)):
        if size > 1 and stride != room:
            return False
        room *= size
    return tensor.stride(0) == room


def room_for(count: int, rows: Tensor) -> Tensor:
    """Return an empty tensor[count, ...] for rows like these, in the order of theirs."""
    room = rows.new_empty(count, *rows.shape[1:])
    if not row_by_row(rows):
        return room
    return room.as_strided(room.shape, rows.stride())
