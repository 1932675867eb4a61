"""Max-pooling of many clients' images in the order in which they lie in memory.

torch's vmap folds clients into the batch. Images that lie in the order [B, H, W, N, C], as convolutions with each
client's own kernels leave them, would be copied for that; here clients are folded into the channels instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedctta.core.gpu_kernels import bring_to_front
from fedctta.core.memory_layout import put_side_by_side, separate_clients

Pair = tuple[int, int]


@dataclass(frozen=True)
class Pool:
    """All of a max-pooling but its tensors; no tuple, whose parts `torch.func` would look for tensors."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    ceil: bool

    @property
    def arguments(self) -> tuple[Pair, Pair, Pair, Pair, bool]:
        """In the order of torch's arguments."""
        return self.kernel, self.stride, self.padding, self.dilation, self.ceil


def read_pool(layer: nn.MaxPool2d) -> Pool:
    """Return how a layer pools."""
    kernel, stride, padding, dilation = (
        (size, size) if isinstance(size, int) else (size[0], size[1])
        for size in (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    )
    return Pool(kernel, stride, padding, dilation, layer.ceil_mode)


def max_pool(pool: Pool, x: Tensor) -> Tensor:
    """Pool images x[B, C, H, W]."""
    y: Tensor = _MaxPool.apply(x, pool)[0]  # type: ignore[no-untyped-call]
    return y


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, pool: Pool) -> tuple[Tensor, Tensor]:
        y, places = torch.ops.aten.max_pool2d_with_indices(x, *pool.arguments)
        return y, places

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, ctx.pool = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        x, places = ctx.saved_tensors
        return _Gradient.apply(gradients[0], x, places, ctx.pool), None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, pool: Pool
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        x = x.movedim(in_dims[0] or 0, 0)
        side_by_side = _lies_side_by_side(x)
        both = _MaxPool.apply(_fold(x, side_by_side), pool)  # type: ignore[no-untyped-call]
        y, places = (_unfold(part, len(x), side_by_side) for part in both)
        return (y, places), (0, 0)


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(gradient: Tensor, x: Tensor, places: Tensor, pool: Pool) -> Tensor:
        of_x: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(gradient, x, *pool.arguments, places)
        return of_x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
        *tensors, pool = arguments
        every = bring_to_front(info, in_dims, tensors)
        side_by_side = _lies_side_by_side(every[1])
        folded = (_fold(tensor, side_by_side) for tensor in every)
        return _unfold(_Gradient.apply(*folded, pool), info.batch_size, side_by_side), 0  # type: ignore[no-untyped-call]


def _lies_side_by_side(x: Tensor) -> bool:
    """Whether clients of x[N, B, ...] lie side by side within every image's pixels."""
    return x.dim() == 5 and x.stride(0) < x.stride(1) and len(x) > 1 < x.shape[1]


def _fold(x: Tensor, side_by_side: bool) -> Tensor:
    """Return x[N, B, C, H, W] as [N B, C, H, W], or with clients side by side as [B, N C, H, W], channels last."""
    if not side_by_side:
        return x.flatten(0, 1)
    return put_side_by_side(x)


def _unfold(y: Tensor, clients: int, side_by_side: bool) -> Tensor:
    """Undo `_fold`."""
    if not side_by_side:
        return y.view(clients, -1, *y.shape[1:])
    return separate_clients(y, clients)
