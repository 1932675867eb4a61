"""Mixing models that are too many to be held twice, or that are stored in bfloat16: some columns at a time.

A column of the mixture depends on the same column of all uploads and on nothing else, so it can take its place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedctta.aggregators.common.mixing import Mixing, Weights, find_common_row, mix, of_tensor
from fedctta.core.memory_layout import row_by_row
from fedctta.core.network import Tensors
from fedctta.core.storage import Storage, narrow, widen

NUMBERS_AT_ONCE = {"cpu": 2**20, "cuda": 2**26}  # what a cache holds; 256 MB in float32


def mix_blocks(
    weights: Mixing, own: Tensors, *, in_place: bool, storage: Storage | None = None, key: Tensor | None = None
) -> Tensors:
    """Give client i the model sum_j W_ij theta_j, as `mix` does, in the type that it had.

    With `in_place`, large tensors are mixed where they are; a model that all receive is stored once. Those in `storage`
    are mixed in float32, and rounded by the same chance for all clients, which comes from `key`: who should receive the
    same model does.
    """
    large = {n: t for n, t in own.items() if t.dim() > 2 and row_by_row(t) and (in_place or t.dtype == torch.bfloat16)}
    mixed = mix(weights, widen({name: tensor for name, tensor in own.items() if name not in large}))
    if storage is not None and key is not None:
        mixed = storage.narrow(mixed, key, stacked=True)
    for name, tensor in large.items():
        mine = of_tensor(weights, name)
        row = find_common_row(mine)  # if all receive the same, one model is stored
        into = torch.empty_like(tensor[:1]) if row is not None else tensor if in_place else torch.empty_like(tensor)
        chance = None
        if storage is not None and key is not None and name in storage.names:
            chance = storage.draw(name, key, tensor.shape[1:])
        _mix_columns(mine if row is None else row, tensor, into, chance)
        mixed[name] = into.expand_as(tensor)
    return {name: mixed[name] for name in own}


def _mix_columns(weights: Weights, tensor: Tensor, into: Tensor, chance: Tensor | None) -> None:
    """Write W tensor into another one that lies alike in memory, or into itself."""
    rows, columns = _flatten(tensor), tensor[0].numel()
    places, step = _flatten(into), max(1, NUMBERS_AT_ONCE[tensor.device.type] // len(tensor))
    if chance is not None:  # in the order of memory
        chance = _flatten(torch.empty_like(tensor[:1], dtype=chance.dtype).copy_(chance))[0]
    for some in (slice(first, first + step) for first in range(0, columns, step)):
        new = weights @ rows[:, some].float().contiguous()
        places[:, some] = new if chance is None else narrow(new, chance[some])


def _flatten(tensor: Tensor) -> Tensor:
    """Return tensor[N, ...] as [N, D], in the order of memory."""
    return tensor.as_strided((len(tensor), tensor[0].numel()), (tensor.stride(0), 1))
