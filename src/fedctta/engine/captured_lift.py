"""Lifted functions as CUDA graphs, for rounds that cannot be one graph because the host decides something in them.

Clients may be absent, or look at a batch once more, and a server may keep lists whose length changes. What the clients
compute in such rounds (adapt, signal, review, predict) is still a pure function of tensors. A method that is called
again with tensors of the same shapes is captured, and from then on its arguments are copied to where the graph reads
them, and its results from where it leaves them. The first replay is compared with an ordinary call. Why a method is not
captured is logged (`fedctta.engine.captured_lift`, level DEBUG).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from functools import partial
from inspect import ismethod
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from fedctta.core.clients import Lifter
from fedctta.core.gpu_memory import capture_graph
from fedctta.core.tensors import agree
from fedctta.machine import total_memory

WARM = 2  # calls before a capture, in which libraries initialise
MOST = 32  # graphs: numbers of clients that are present, or look again, may be many
SHARE = 0.125  # of the device's memory that all arguments and results together may take

log = logging.getLogger(__name__)


class Graph(Protocol):
    """What `torch.cuda.CUDAGraph` can do."""

    def replay(self) -> None:
        """Compute once more."""


class _Captured(NamedTuple):
    """A graph, the tensors that it reads and those that it writes, and the form of its results."""

    graph: Graph
    reads: list[Tensor]
    writes: list[Tensor]
    given: TreeSpec

    def call(self, leaves: list[Tensor]) -> Any:
        torch._foreach_copy_(self.reads, leaves)
        self.graph.replay()
        return tree_unflatten([tensor.clone() for tensor in self.writes], self.given)


class CapturedLift:
    """A lifting that replays the methods it has lifted before. Functions without an owner are lifted as ever."""

    def __init__(self, lift: Lifter, device: torch.device) -> None:
        self._lift, self._device = lift, device
        self._known: dict[Hashable, int | _Captured | None] = {}  # calls so far, a graph, or None: not possible
        self._recorder = _Recorder(device)
        self._room = SHARE * total_memory(device)

    @property
    def graphs(self) -> int:
        """How many graphs there are."""
        return sum(isinstance(found, _Captured) for found in self._known.values())

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Lift a function of one client."""
        lifted, method = self._lift(function), _identify(function)
        return lifted if method is None else partial(self._call, method, lifted)

    def _call(self, method: tuple[Hashable, ...], lifted: Callable[..., Any], *arguments: Any) -> Any:
        leaves, taken = tree_flatten(arguments)
        key = (method, taken, tuple((leaf.shape, leaf.dtype) for leaf in leaves))
        found = self._known.get(key, 0)
        if isinstance(found, int) and (found < WARM or self.graphs == MOST):
            self._known[key] = found + 1
            return lifted(*arguments)
        if isinstance(found, int):
            captured = self._capture(lifted, leaves, taken)
            if isinstance(captured, str):
                log.debug("%s is not captured: %s", getattr(method[0], "__qualname__", method[0]), captured)
            found = self._known[key] = None if isinstance(captured, str) else captured
        return found.call(leaves) if found is not None else lifted(*arguments)

    def _capture(self, lifted: Callable[..., Any], leaves: list[Tensor], taken: TreeSpec) -> _Captured | str:
        """Return a call as a graph, or why it cannot be one."""
        if any(leaf.device != self._device for leaf in leaves):
            return "some of its arguments are on the host"
        expected, form = tree_flatten(lifted(*tree_unflatten(leaves, taken)))
        size = sum(tensor.nbytes for tensor in (*leaves, *expected))
        if size > self._room:  # large tensors keep a GPU busy without graphs
            return f"its arguments and results have {size / 1e9:.1f} GB, more than there is room for"
        if _computes_nothing(leaves, expected):
            return "it returns only what it was given"
        reads = [leaf.clone() for leaf in leaves]
        try:
            graph, results = self._recorder.record(partial(lifted, *tree_unflatten(reads, taken)))
        except RuntimeError as error:
            torch.cuda.synchronize(self._device)
            return str(error).strip().partition("\n")[0] or type(error).__name__
        captured = _Captured(graph, reads, tree_flatten(results)[0], form)
        if not all(map(agree, expected, tree_flatten(captured.call(leaves))[0])):
            return "a replay gives something else than a call"
        self._room -= size
        return captured


class _Recorder:
    """Captures graphs that take turns, so that all use the same memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._shared: tuple[Any, torch.cuda.Stream] | None = None

    def record(self, function: Callable[[], Any]) -> tuple[Graph, Any]:
        """Return a function as a graph, and the results that it will leave."""
        if self._shared is None:
            pool = torch.cuda.graph_pool_handle()
            self._shared = pool, torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        pool, side = self._shared
        graph = torch.cuda.CUDAGraph()
        torch.cuda.current_stream(self._device).synchronize()
        with capture_graph(graph, side, pool):
            results = function()
        return graph, results


def _identify(function: Callable[..., Any]) -> tuple[Hashable, ...] | None:
    """Return what makes two functions the same: a method, its owner, and what is bound to it; None: there is no owner.

    Owners are methods of clients and servers, which are pure. A closure may mean something else at every call.
    """
    method: Callable[..., Any] = function
    bound: tuple[object, ...] = ()
    if isinstance(function, partial):
        if function.keywords:
            return None
        method, bound = function.func, function.args
    if not ismethod(method):
        return None
    return method.__func__, id(method.__self__), *map(id, bound)


def _computes_nothing(leaves: list[Tensor], results: list[Tensor]) -> bool:
    """Whether there are no results but what was given, so that a graph would be empty."""
    given = {leaf.untyped_storage().data_ptr() for leaf in leaves}
    return all(result.untyped_storage().data_ptr() in given for result in results)
