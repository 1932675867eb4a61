"""Memory of a GPU that a run takes, and gives back when it ends.

A CUDA graph has a pool of memory of its own, which is free again when the graph is gone and nothing else lies in it.
Three things would keep it: graphs that are cached for the next round of the same form (`until_run_ends`), objects that
wait for Python's collector (`release_memory`), and the workspace that cuBLAS takes for every stream it meets and never
gives back. If it meets a stream during a capture, its few MB lie in the graph's pool, perhaps within a segment of
several GB. Therefore every graph takes a workspace of its own, and cuBLAS forgets it after the capture
(`capture_graph`): it stays part of the pool, where nobody else allocates.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")
_caches: list[Callable[[], None]] = []


def until_run_ends(maxsize: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Remember the last results of a function, as `lru_cache` does, until `release_memory`."""

    def remember(function: Callable[P, T]) -> Callable[P, T]:
        kept = lru_cache(maxsize)(function)
        _caches.append(kept.cache_clear)
        return kept  # type: ignore[return-value]

    return remember


def clear_when_run_ends(clear: Callable[[], None]) -> None:
    """Call this function, too, in `release_memory`."""
    _caches.append(clear)


def release_memory(device: torch.device) -> None:
    """Give back what ended runs have left on a device, CUDA graphs included; on a CPU it is freed by itself."""
    for clear in _caches:
        clear()
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


@contextmanager
def capture_graph(
    graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream | None = None, pool: Any = None
) -> Iterator[None]:
    """Capture what is computed within, as `torch.cuda.graph` does, with a workspace of cuBLAS in the graph's pool.

    Graphs that are replayed in turns, and whose results are copied at once, may share a `pool`.
    """
    _forget_workspaces()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            yield
    finally:
        _forget_workspaces()


def _forget_workspaces() -> None:
    torch._C._cuda_clearCublasWorkspaces()
