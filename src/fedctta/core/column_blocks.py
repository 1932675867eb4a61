"""Blocks of columns of one matrix, copied all at once.

What is computed of a model's many short vectors is computed of one matrix, [N, all of them], and handed out in blocks
of columns. Such a block has gaps between its rows, and a GPU would copy each by a kernel of its own. Where the numbers
of blocks stand is uploaded once; a CUDA graph that is being captured must not, and copies unknown blocks one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fedctta.core.gpu_memory import clear_when_run_ends

MOST = 2**20  # numbers of a matrix up to which its blocks are copied at once; larger ones keep a GPU busy one by one

_places: dict[tuple[int, tuple[int, ...], torch.device], Tensor] = {}  # of the numbers of blocks, in their matrices
clear_when_run_ends(_places.clear)


def close_gaps(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors; those that lie side by side in one matrix as copies without gaps, made at once."""
    closed = list(tensors)
    for places in _find_neighbours(tensors):
        blocks = [tensors[k] for k in places]
        first, widths = blocks[0], tuple(block.shape[1] for block in blocks)
        order = _find_order(len(first), widths, first.device)
        if order is None:
            continue
        whole = first.as_strided((len(first), sum(widths)), first.stride())
        for k, block in zip(places, gather_blocks(whole, widths, order), strict=True):
            closed[k] = block
    return closed


def gather_blocks(matrix: Tensor, widths: tuple[int, ...], order: Tensor) -> list[Tensor]:
    """Return the columns of a matrix in blocks of these widths, whose numbers stand in this order, without gaps."""
    sizes = [len(matrix) * width for width in widths]
    flat = torch.split(matrix.take(order), sizes)
    return [block.view(len(matrix), width) for block, width in zip(flat, widths, strict=True)]


def _find_order(rows: int, widths: tuple[int, ...], device: torch.device) -> Tensor | None:
    """Return the places of a matrix's numbers, block by block; None where they are not known and cannot be uploaded."""
    key = rows, widths, device
    if key not in _places:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return None
        _places[key] = list_places(rows, widths).to(device)
    return _places[key]


def list_places(rows: int, widths: tuple[int, ...]) -> Tensor:
    """Return the places of a matrix's numbers, block of columns by block."""
    places = torch.arange(rows * sum(widths)).view(rows, sum(widths))
    return torch.cat([block.flatten() for block in torch.split(places, list(widths), 1)])


def _find_neighbours(tensors: Sequence[Tensor]) -> Iterable[list[int]]:
    """Return the indices of two or more matrices that lie side by side in one of at most `MOST` numbers."""
    runs: list[list[int]] = []
    gappy = [k for k, t in enumerate(tensors) if t.dim() == 2 and len(t) > 1 and 0 < t.shape[1] < t.stride(0)]
    for k in sorted((k for k in gappy if tensors[k].stride(1) == 1), key=lambda k: _find_place(tensors[k])):
        last = tensors[runs[-1][-1]] if runs else None
        if last is not None and _follows(tensors[k], last):
            runs[-1].append(k)
        else:
            runs.append([k])
    return (run for run in runs if len(run) > 1 and sum(tensors[k].numel() for k in run) <= MOST)


def _find_place(tensor: Tensor) -> tuple[int, int, int]:
    return tensor.untyped_storage().data_ptr(), tensor.stride(0), int(tensor.storage_offset())


def _follows(tensor: Tensor, before: Tensor) -> bool:
    """Whether a block begins where the one before ends, in the same rows."""
    (storage, step, start), (other, its_step, its_start) = _find_place(tensor), _find_place(before)
    alike = (storage, step, tensor.dtype, len(tensor)) == (other, its_step, before.dtype, len(before))
    return alike and start == its_start + before.shape[1] and start % step != 0
