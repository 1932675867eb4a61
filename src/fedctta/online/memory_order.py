"""In which order the elements of tensors lie in memory: the last bits of convolutions depend on it, files forget it."""

from __future__ import annotations

import torch
from torch import Tensor

from fedctta.core.network import Tensors
from fedctta.core.tensors import like


def note_strides(tensors: Tensors) -> Tensors:
    """Return the strides of tensors of several axes; of those with gaps, which take more room than they need, none."""
    found = {name: t.stride() for name, t in tensors.items() if t.dim() > 1 and _is_dense(t.shape, t.stride())}
    return {name: torch.tensor(strides) for name, strides in found.items()}


def lay_like(old: Tensor, new: Tensor, strides: Tensor | None) -> Tensor:
    """Return the values of `new` on the device and in the type of `old`, with the noted strides; without, those of it.

    >>> lay_like(torch.zeros(2, 3), torch.arange(6).view(2, 3), torch.tensor([1, 2])).stride()
    (1, 2)
    """
    noted = () if strides is None else tuple(strides.tolist())
    if len(noted) != old.dim() or not _is_dense(old.shape, noted):
        return like(old, new)
    return torch.empty_strided(old.shape, noted, dtype=old.dtype, device=old.device).copy_(new)


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements lie side by side, each once, in the order of some axes."""
    room = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1):
        if stride != room:
            return False
        room *= size
    return all(stride >= 0 for stride in strides)
