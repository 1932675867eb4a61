"""Parts of books that cannot be true: a device that sends one is broken or lies, and all that it sent is refused.

What is checked of every part, apart from rounding:

    finite numbers; 0 <= scored, measured <= images; all images of a device together, and all versions, <= its time
    the variance of looks, square / images - (look / images)^2, is not below zero
    doubts, and how unusual classes are, are not below zero
    z of all channels has a root mean square of at most 10, e of at most 100; the variance 1 + e - z^2 is not below zero
    no two parts of a device have the same name
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedctta.books.rows import Layout

Array = NDArray[Any]

BOUND = 10.0  # of z, in source deviations; honest parts have less than 2
ROUNDING = 1e-2
TINY = 1e-6


def find_honest(layout: Layout, rows: Tensor, names: Tensor, versions: Tensor, times: Tensor) -> Tensor:
    """Return which devices[N] have sent, at times[N], parts rows[N, K, S] that can be true.

    Parts have names[N, K] (0: there is none) and versions[N, K]. Rows on a GPU stay there: they may be 100 MB.
    """
    if rows.is_cuda:
        return find_honest_there(layout, rows, names, versions, times)
    told = [tensor.detach().cpu().numpy() for tensor in (rows, names, versions, times)]
    return torch.as_tensor(_find_honest(layout, *told)).to(rows.device)


# NumPy, because it is quicker than PyTorch where rows are few.


def find_possible(layout: Layout, rows: Array) -> Array:
    """Return which of rows[..., S] can be true; a row of zeros can."""
    told = {name: rows[..., columns] for name, columns in layout.parts.items()}
    seen, scored, measured = told["images"], told["scored"], told["measured"]
    with np.errstate(all="ignore"):
        largest = np.abs(rows).max(-1)
        fine = largest < np.inf  # also false if one is not a number
        for count in (seen, scored, measured):
            fine &= ((count >= 0) & (count <= seen * (1 + ROUNDING) + ROUNDING))[..., 0]
        look, square = (told[name] / np.maximum(seen, TINY) for name in ("look", "square"))
        fine &= (square - look * look >= -ROUNDING * (1 + look * look)).all(-1)
        fine &= (told["doubt"] >= 0).all(-1)
        fine &= (told["unusual"] >= -ROUNDING * (1 + scored)).all(-1)
        z, e = np.split(told["moments"] / np.maximum(measured, TINY), 2, -1)
        z = z * z
        fine &= (1 + e - z >= -ROUNDING * (1 + z)).all(-1)
        per = max(layout.channels, 1)
        fine &= (z.sum(-1) <= per * BOUND**2) & ((e * e).sum(-1) <= per * BOUND**4)
    possible: Array = fine | (largest == 0)
    return possible


def _find_honest(layout: Layout, rows: Array, names: Array, versions: Array, times: Array) -> Array:
    sent = names != 0
    possible = np.ones_like(sent)
    possible[sent] = find_possible(layout, rows[sent])  # few of the rows are there
    with np.errstate(invalid="ignore"):
        honest: Array = _check_lists(possible, rows, names, versions, times)
    return honest


def find_honest_there(layout: Layout, rows: Tensor, names: Tensor, versions: Tensor, times: Tensor) -> Tensor:
    """Return the same as `find_honest`, in PyTorch."""
    sent = names != 0
    possible = torch.ones_like(sent).index_put((sent,), _find_possible_there(layout, rows[sent]))
    honest: Tensor = _check_lists(possible, rows, names, versions, times)
    return honest


def _check_lists(possible: Any, rows: Any, names: Any, versions: Any, times: Any) -> Any:
    """Return which devices' parts are all possible, and agree with each other; arrays of NumPy or tensors."""
    sent = names != 0
    fine = possible.all(1)
    fine &= ~((rows[..., 0] * sent).sum(1) > times * (1 + ROUNDING) + ROUNDING)
    fine &= ~(sent & ((versions <= 0) | (versions > times[:, None]))).any(1)
    twice = (names[:, :, None] == names[:, None]) & sent[:, :, None]
    return fine & (twice.sum((1, 2)) == sent.sum(1))


def _find_possible_there(layout: Layout, rows: Tensor) -> Tensor:
    """Return the same as `find_possible`, in PyTorch."""
    told = {name: rows[..., columns] for name, columns in layout.parts.items()}
    seen, scored, measured = told["images"], told["scored"], told["measured"]
    largest = rows.abs().amax(-1)
    counts = torch.cat([seen, scored, measured], -1)
    fine = (largest < torch.inf) & ((counts >= 0) & (counts <= seen * (1 + ROUNDING) + ROUNDING)).all(-1)
    look, square = (told[name] / seen.clamp_min(TINY) for name in ("look", "square"))
    fine &= (square - look * look >= -ROUNDING * (1 + look * look)).all(-1)
    fine &= (told["doubt"] >= 0).all(-1) & (told["unusual"] >= -ROUNDING * (1 + scored)).all(-1)
    z, e = (told["moments"] / measured.clamp_min(TINY)).tensor_split(2, -1)
    z = z * z
    fine &= (1 + e - z >= -ROUNDING * (1 + z)).all(-1)
    per = max(layout.channels, 1)
    fine &= (z.sum(-1) <= per * BOUND**2) & ((e * e).sum(-1) <= per * BOUND**4)
    return fine | (largest == 0)
