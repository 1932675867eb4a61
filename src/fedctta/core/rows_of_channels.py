"""Tensors as groups of rows of channels, where that is how they lie in memory: what the kernels of `norm_kernels` read.

Images [N, B, C, H, W] are N groups of B H W rows of C numbers, in both orders that the engine has: client after client,
channels last, or [B, H, W, N, C].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Steps = tuple[int, int, int, int]
TYPES = (torch.float32, torch.bfloat16)
LARGEST = 2**31  # numbers of a tensor, which a kernel counts in 32 bits


class Rows(NamedTuple):
    """How many groups, rows and channels there are, and for every tensor its steps from group to group and row to row.

    Group g is the pair (g // groups2, g % groups2), and each of the two has a step; so are rows.
    """

    groups: int
    groups2: int
    length: int
    rows2: int
    channels: int
    steps: tuple[Steps, ...]


def find_rows(over: tuple[int, ...], wholes: Sequence[Tensor], kept: Sequence[Tensor] = ()) -> Rows | None:
    """Return the rows of `wholes`, of one shape, over the axes `over`; None if a kernel cannot read them so.

    `kept` have the shape of the other axes, the last of which are the channels.
    """
    every, shape = (*wholes, *kept), wholes[0].shape
    if any(t.dtype != torch.float32 for t in kept) or any(t.dtype not in TYPES for t in wholes):
        return None
    if any(t.numel() >= LARGEST for t in every) or not wholes[0].numel():
        return None
    *outer, channel = (d for d in range(len(shape)) if d not in over)
    if any(t.stride(channel) != 1 for t in wholes) or any(t.stride(-1) != 1 for t in kept):
        return None
    of_groups = [[t.stride(d) for d in outer] for t in wholes] + [list(t.stride()[:-1]) for t in kept]
    groups = _merge([shape[d] for d in outer], of_groups)
    inner = sorted(over, key=wholes[0].stride, reverse=True)
    rows = _merge([shape[d] for d in inner], [[t.stride(d) for d in inner] for t in wholes])
    if groups is None or rows is None:
        return None
    row_steps = rows[2] + [(0, 0)] * len(kept)
    steps = tuple((*outside, *inside) for outside, inside in zip(groups[2], row_steps, strict=True))
    return Rows(groups[0] * groups[1], groups[1], rows[0] * rows[1], rows[1], shape[channel], steps)


def _merge(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[int, int, list[tuple[int, int]]] | None:
    """Return two sizes and their strides in every tensor, for axes that can be walked so; None if there are more."""
    merged: list[tuple[int, list[int]]] = []
    for size, *steps in zip(sizes, *strides, strict=True):
        if size == 1:
            continue
        if merged and all(before == step * size for before, step in zip(merged[-1][1], steps, strict=True)):
            merged[-1] = merged[-1][0] * size, steps
        else:
            merged.append((size, steps))
    if len(merged) > 2:
        return None
    (first, outer), (second, inner) = [(1, [0] * len(strides))] * (2 - len(merged)) + merged
    return first, second, list(zip(outer, inner, strict=True))
