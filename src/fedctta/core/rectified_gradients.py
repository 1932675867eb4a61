"""Rectifiers, min(max(0, .), top), and the gradient of one that is applied with a scale and a shift.

    y = min(max(0, x a + b), top)         of_x = g m a    of_a = sum g m x    of_b = sum g m

where the mask m says where 0 < x a + b < top. A kernel finds it again from x, and reads g and x once for all three.
"""

from __future__ import annotations

from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.core.gpu_kernels import bring_to_front, can_fuse
from fedctta.core.rows_of_channels import find_rows


def rectify(y: Tensor, top: float | None) -> Tensor:
    """Return min(max(0, y), top), or y itself without a top."""
    if top is None:
        return y
    return F.relu(y) if top == inf else F.hardtanh(y, 0.0, top)


def pull_back(
    gradient: Tensor, x: Tensor, scale: Tensor, shift: Tensor, top: float, over: tuple[int, ...], wanted: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, which is empty if it is not wanted, of the scale and of the shift."""
    found: tuple[Tensor, Tensor, Tensor] = _PullBack.apply(  # type: ignore[no-untyped-call]
        gradient, x, scale, shift, top, over, wanted
    )
    return found


class _PullBack(torch.autograd.Function):
    @staticmethod
    def forward(
        gradient: Tensor, x: Tensor, scale: Tensor, shift: Tensor, top: float, over: tuple[int, ...], wanted: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        of_x = torch.empty_like(x) if wanted else x
        rows = find_rows(over, (gradient, x, of_x), (scale, shift))
        if rows is None or not can_fuse(x):
            passed = torch.where(_passes(x, scale, shift, top, over), gradient, 0)
            of_x = passed * widen(scale, over) if wanted else x.new_zeros(0)
            return of_x, (passed * x).sum(over), passed.sum(over)
        from fedctta.core import rectified_kernels

        of_scale, of_shift = rectified_kernels.pull_back(gradient, x, scale, shift, top, of_x if wanted else None, rows)
        return of_x if wanted else x.new_zeros(0), of_scale.view(scale.shape), of_shift.view(scale.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.top, ctx.over, ctx.wanted = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient, x, scale, shift = ctx.saved_tensors
        mask = _passes(x, scale, shift, ctx.top, ctx.over)
        of_a, of_b = (widen(each, ctx.over) for each in gradients[1:])
        of_gradient, of_scale = of_b + of_a * x, None
        if ctx.wanted:
            of_gradient = of_gradient + gradients[0] * widen(scale, ctx.over)
            of_scale = torch.where(mask, gradient * gradients[0], 0).sum(ctx.over)
        both = (torch.where(mask, each, 0) for each in (of_gradient, gradient * of_a))
        return *both, of_scale, None, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *arguments: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int | None, int, int]]:
        *tensors, top, over, wanted = arguments
        gradient, x, scale, shift = bring_to_front(info, in_dims, tensors)
        found = pull_back(gradient, x, scale, shift, top, tuple(d + 1 for d in over), wanted)
        return found, (0 if wanted else None, 0, 0)


def _passes(x: Tensor, scale: Tensor, shift: Tensor, top: float, over: tuple[int, ...]) -> Tensor:
    """Return where 0 < x scale + shift < top."""
    y = torch.addcmul(widen(shift, over), x, widen(scale, over))
    return (y > 0) & (y < top)


def widen(small: Tensor, over: tuple[int, ...]) -> Tensor:
    """Give a tensor without the axes `over` these axes back, with size 1."""
    for d in sorted(over):
        small = small.unsqueeze(d)
    return small
