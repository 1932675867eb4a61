"""ReLUs that follow a BatchNorm layer and nothing else: the kernel that normalises a batch applies them on its way.

The first pass over inputs of a shape watches what becomes of every layer's output. Where only max(0, x) or
min(max(0, x), top) is computed of it, later passes give the layer's output so, and the call that follows returns it as
it is. Passes over inputs of one shape do the same operations in a model that vmap runs; one that does something else
with such an output ends with `OtherPass`, and is to be run again without.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

PLAIN = {F.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_}


class OtherPass(Exception):
    """What a layer has rectified already is used by another function than the one known from the first pass."""


class Rectifiers(TorchFunctionMode):
    """Watches a pass or, with the `tops` of layers known from another one, leaves out what these have done."""

    def __init__(self, tops: Mapping[str, float] | None = None) -> None:
        super().__init__()
        self.tops = tops
        self._given: dict[int, tuple[str, ref[Tensor]]] = {}  # by id, as long as they live: a pass may give many
        self._calls: dict[str, int] = {}
        self._used: dict[str, list[float | None]] = {}

    def top(self, name: str) -> float | None:
        """Return up to where a layer's output is to be rectified; None: not at all."""
        return None if self.tops is None else self.tops.get(name)

    def note(self, name: str, y: Tensor) -> Tensor:
        """Take note of a layer's output, and return it."""
        if self.tops is None:
            self._calls[name] = self._calls.get(name, 0) + 1
        if self.tops is None or name in self.tops:
            self._given[id(y)] = name, ref(y)
        return y

    def find(self, output: object) -> dict[str, float]:
        """Return the layers of which every output was used once, by one rectifier, and up to where that lets pass.

        What a pass returns, its `output`, is used too.
        """
        found = {}
        for name in filter(None, map(self._find, tree_leaves(output))):
            self._used.setdefault(name, []).append(None)
        for name, used in self._used.items():
            top = used[0]
            if top is not None and len(used) == self._calls[name] and all(other == top for other in used):
                found[name] = top
        return found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function, or return what it would."""
        kwargs = kwargs or {}
        given = [x for x in tree_leaves((args, kwargs)) if self._find(x) is not None] if self._given else []
        if not given:
            return func(*args, **kwargs)
        top = read_top(func, args, kwargs)
        if self.tops is not None:
            if top is None or any(self.top(self._given[id(tensor)][0]) != top for tensor in given):
                raise OtherPass
            del self._given[id(args[0])]  # whatever comes after it is used for, it is what it should be
            return args[0]
        for tensor in given:
            self._used.setdefault(self._given[id(tensor)][0], []).append(top)
        result = func(*args, **kwargs)
        if given[0] is result:  # computed in place: from now on it is no output of the layer
            del self._given[id(result)]
        return result

    def _find(self, x: object) -> str | None:
        """Return whose output this is."""
        name, tensor = self._given.get(id(x), ("", None))
        return name if tensor is not None and tensor() is x else None


NO_RECTIFIERS = Rectifiers({})


def read_top(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float | None:
    """Return up to where a function that is 0 for numbers below 0 lets others pass; None: it is another function.

    >>> read_top(F.relu6, (torch.zeros(1),), {}), read_top(torch.sin, (torch.zeros(1),), {})
    (6.0, None)
    """
    if func in PLAIN:
        return inf
    if func is F.relu6:
        return 6.0
    if func is F.hardtanh:
        low = args[1] if len(args) > 1 else kwargs.get("min_val", -1.0)
        high = args[2] if len(args) > 2 else kwargs.get("max_val", 1.0)
        return float(high) if low == 0 else None
    return None
