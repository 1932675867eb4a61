"""Normalisation with a batch's own statistics as one function, whose gradient takes two passes over memory.

    a = w / sqrt(v + eps)    y = min(max(0, (x - m) a + b), top)    with mean m and variance v of n numbers x

With g' the gradient of y where 0 < y < top (all of it without a top), S1 = sum g', S2 = sum g' (x - m), and gradients
g_m and g_v of the two statistics themselves,

    of_w = S2 / sqrt(v + eps)    of_b = S1    of_v = g_v - S2 w (v + eps)^(-3/2) / 2    of_m = g_m - a S1
    of_x = a g' + (2 of_v (x - m) + of_m) / n

So g and x are read twice, and what differs by channel is computed on the way. Without kernels it is plain torch.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from fedctta.core.fused_norms import normalise_fused
from fedctta.core.gpu_kernels import bring_to_front, can_fuse
from fedctta.core.moments import moments
from fedctta.core.rectified_gradients import widen
from fedctta.core.rows_of_channels import find_rows

Axes = tuple[int, ...]


def normalise_by_batch(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, top: float | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return x[B, C, ...] normalised, rectified with a `top`, and its mean and biased variance [C]."""
    over = tuple(d for d in range(x.dim()) if d != 1)
    y, mean, var = _ByBatch.apply(x, weight, bias, eps, top, over)  # type: ignore[no-untyped-call]
    return y, mean, var


class _ByBatch(torch.autograd.Function):
    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, eps: float, top: float | None, over: Axes
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean, var = moments(x, over)
        return normalise_fused(x, mean, var, weight, bias, eps, top, over), mean, var

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, weight, bias, *ctx.form = inputs
        ctx.save_for_backward(x, *output[1:], weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        of_x, of_weight, of_bias = _Gradients.apply(*gradients, *ctx.saved_tensors, *ctx.form)  # type: ignore[no-untyped-call]
        return of_x, of_weight, of_bias, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *arguments: Any
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int, int, int]]:
        *tensors, eps, top, over = arguments
        every = bring_to_front(info, in_dims, tensors)
        found = _ByBatch.apply(*every, eps, top, tuple(d + 1 for d in over))  # type: ignore[no-untyped-call]
        return found, (0, 0, 0)


class _Gradients(torch.autograd.Function):
    """Gradients of x, weight and bias, given those of y, mean and variance."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        gradient, of_mean, of_var, x, mean, var, weight, bias, eps, top, over = arguments
        of_x = torch.empty_like(x)
        small = (mean, var, weight, bias, of_mean, of_var)
        rows = find_rows(over, (gradient, x, of_x), small)
        if rows is None or not can_fuse(x):
            return find_gradients(*arguments)
        from fedctta.core import batch_normalisation_kernels as kernels

        of_weight, of_bias = kernels.pull_back_by_batch(gradient, x, small, eps, top, of_x, rows)
        return of_x, of_weight.view(mean.shape), of_bias.view(mean.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        *tensors, eps, top, over = inputs
        ctx.form = eps, top, over
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        eps, top, over = ctx.form
        plain = partial(find_gradients, eps=eps, top=top, over=over)
        return *torch.func.vjp(plain, *ctx.saved_tensors)[1](gradients), None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *arguments: Any
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int, int, int]]:
        *tensors, eps, top, over = arguments
        every = bring_to_front(info, in_dims, tensors)
        found = _Gradients.apply(*every, eps, top, tuple(d + 1 for d in over))  # type: ignore[no-untyped-call]
        return found, (0, 0, 0)


def find_gradients(
    gradient: Tensor,
    of_mean: Tensor,
    of_var: Tensor,
    x: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    top: float | None,
    over: Axes,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias in plain torch."""
    inverse = torch.rsqrt(var + eps)
    apart, scale = x - widen(mean, over), weight * inverse
    if top is not None:
        y = torch.addcmul(widen(bias, over), apart, widen(scale, over))
        gradient = torch.where((y > 0) & (y < top), gradient, 0)
    of_bias, product = gradient.sum(over), (gradient * apart).sum(over)
    of_var = of_var - product * weight * inverse.pow(3) / 2
    of_mean = of_mean - scale * of_bias
    share = 1 / prod(x.shape[d] for d in over)
    of_x = gradient * widen(scale, over) + (2 * widen(of_var, over) * apart + widen(of_mean, over)) * share
    return of_x, product * inverse, of_bias
