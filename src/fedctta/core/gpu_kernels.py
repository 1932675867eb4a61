"""Whether kernels written in Triton can be used: they are the fast way, and plain torch is always another.

Kernels are in files of their own (`*_kernels`), which are imported where a tensor is on a GPU. A kernel does not know
vmap: whoever calls one goes through an autograd function, whose `forward` sees tensors with all axes.

With TRITON_INTERPRET=1, Triton's interpreter plays kernels on the CPU, far more slowly than plain torch: so they are
tested where there is no GPU.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def has_kernels() -> bool:
    """Whether Triton can compile and run kernels here."""
    return find_obstacle() is None


@lru_cache(maxsize=1)
def find_obstacle() -> str | None:
    """Return why kernels cannot be used, or None if they can: tried once.

    It is tried in a thread of its own: inside `torch.func.grad` a new tensor is wrapped, and a kernel cannot read it.
    """
    with ThreadPoolExecutor(1) as alone:
        return alone.submit(_try_kernel).result()


def _try_kernel() -> str | None:
    """Return why a kernel cannot be used, or None if it gives what it should."""
    try:
        from fedctta.core.norm_kernels import moments
        from fedctta.core.rows_of_channels import find_rows

        x = torch.ones(1, 2, 16, device="cpu" if INTERPRETED else "cuda")
        rows = find_rows((1,), (x,))
        right = rows is not None and bool((moments(x, rows)[0] == 1).all())
    except Exception as error:  # no Triton, no compiler, or a GPU that it does not know
        return next(iter(str(error).strip().splitlines()), type(error).__name__)
    return None if right else "a first one computes something else"


def can_fuse(x: Tensor, types: Collection[torch.dtype] = (torch.float32,)) -> bool:
    """Whether kernels for these types may serve a tensor, inside vmap or not. Triton starts them on the current GPU."""
    here = x.device.type == "cpu" if INTERPRETED else x.is_cuda and x.device.index == torch.cuda.current_device()
    return here and x.dtype in types and has_kernels()


def bring_to_front(info: Any, in_dims: Sequence[int | None], tensors: Sequence[Any]) -> list[Any]:
    """Return the arguments of a vmapped function with the clients' axis in front of each; what they share is expanded.

    What is no tensor stays as it is.
    """
    pairs = zip(tensors, in_dims, strict=False)
    return [_bring(tensor, dim, info.batch_size) if isinstance(tensor, Tensor) else tensor for tensor, dim in pairs]


class KernelFunction(torch.autograd.Function):
    """A function whose `forward` serves any number of clients' axes in front of all tensors: vmap brings them there.

    It has no gradient, unless a class adds one.
    """

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep nothing for a gradient."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        """Apply the function with one axis more in front."""
        found = cls.apply(*bring_to_front(info, in_dims, arguments))  # type: ignore[no-untyped-call]
        return found, 0 if isinstance(found, Tensor) else (0,) * len(found)


def _bring(tensor: Tensor, dim: int | None, count: int) -> Tensor:
    return tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
