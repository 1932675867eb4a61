"""Rows of zeros do not travel: an array of which at least half the rows are zeros is sent as its other rows.

name[K, ...]   ->   name[C, ...], the rows that are not zeros, and rows.name[K], which rows these are
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

WHICH = "rows."


class Inconsistent(ValueError):
    """Rows that cannot be put back; the message says why."""


def leave_out_zeros(arrays: Arrays) -> Arrays:
    """Return the arrays as they travel."""
    thin: Arrays = {}
    for name, array in arrays.items():
        if array.ndim > 1 and array.size:
            filled: Any = np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8).any(1)
            if 2 * int(filled.sum()) <= len(array):
                thin[f"{WHICH}{name}"], array = filled, array[filled]
        thin[name] = array
    return thin


def put_zeros_back(arrays: Arrays, limit: int) -> Arrays:
    """Undo `leave_out_zeros`; arrays of more than `limit` bytes in all are refused before they are made."""
    found: Arrays = {}
    size = 0
    for name, array in arrays.items():
        if name.startswith(WHICH):
            if name.removeprefix(WHICH) not in arrays or array.dtype != np.bool_ or array.ndim != 1:
                raise Inconsistent(f"array {name!r:.80} does not say which rows of another array are sent")
            continue
        which = arrays.get(f"{WHICH}{name}")
        if which is not None:
            if array.ndim < 2 or int(which.sum()) != len(array):
                raise Inconsistent(f"array {name!r:.80} has other rows than it says")
            size += len(which) * int(np.prod(array.shape[1:], dtype=object)) * array.itemsize
            if size > limit:
                raise Inconsistent(f"array {name!r:.80} is larger than the {limit} bytes allowed")
            whole = np.zeros((len(which), *array.shape[1:]), array.dtype)
            whole[which] = array
            array = whole
        found[name] = array
    return found
