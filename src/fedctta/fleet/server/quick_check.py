"""A quick look at an upload's numbers: most are far from any limit, and need not be examined tensor by tensor.

It passes only what `fedctta.uploads.robust.plausible` passes, with room for rounding. What it does not pass may still
be fine: the examiner then looks closely, and says what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedctta.core.network import Tensors
from fedctta.uploads.robust import LARGEST

ROOM = 0.999  # of the limit: norms are rounded


class QuickCheck:
    """Knows a norm that no tensor may exceed: bound (||source|| + sqrt(n)), or the largest number of a signal."""

    def __init__(self, sources: Tensors, bound: float) -> None:
        self._limits: dict[str, float] = {}
        for name, source in sources.items():
            most = bound * (float(source.double().norm()) + source.numel() ** 0.5)
            limit = ROOM * (LARGEST if name.startswith("signal.") else most)
            self._limits[name] = min(limit, float(np.finfo(np.float32).max)) ** 2

    def passes(self, arrays: Mapping[str, NDArray[Any]]) -> bool:
        """Whether all numbers are finite and small, and no variance is negative."""
        with np.errstate(all="ignore"):
            return all(self._is_fine(name, array.ravel()) for name, array in arrays.items() if array.dtype.kind == "f")

    def _is_fine(self, name: str, numbers: NDArray[Any]) -> bool:
        square = float(np.dot(numbers, numbers))  # not a number, or infinite, if one of them is
        if not square <= self._limits.get(name, -1.0) or not square < math.inf:
            return False
        return not name.endswith("running_var") or not numbers.size or bool(numbers.min() >= 0)
