"""How the rows of a stack of tensors lie in memory: one after another, each in an order of its own, or side by side."""

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


def put_side_by_side(x: Tensor) -> Tensor:
    """Return x[N, B, C, H, W] as [B, N C, H, W], channels last."""
    return x.permute(1, 3, 4, 0, 2).contiguous().flatten(3).permute(0, 3, 1, 2)


def separate_clients(y: Tensor, clients: int) -> Tensor:
    """Return y[B, N O, H, W] as [N, B, O, H, W]."""
    return y.view(len(y), clients, -1, *y.shape[2:]).transpose(0, 1)
