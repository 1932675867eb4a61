"""Normalisation on a GPU in as few passes over memory as there can be, by the kernels of `norm_kernels`.

    moments             mean and variance in one pass, where torch takes up to four kernels
    normalise_fused     (x - mean) / sqrt(var + eps) weight + bias in one pass, without a gradient
    normalise_blended   a batch's moments, and x normalised with statistics between them and others, without a gradient
    scale_and_shift     x scale + shift, with a gradient: the sums of g and of g x in one pass, and g scale

With a `top`, they compute min(max(0, .), top) of that on their way (`rectifiers`).

Each tensor is computed in plain torch instead where it is not float32 or lies in another order, and all are where
there are no kernels (`gpu_kernels`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedctta.core.gpu_kernels import bring_to_front, can_fuse
from fedctta.core.rectified_gradients import pull_back, rectify, widen
from fedctta.core.rows_of_channels import TYPES, find_rows


def fused_moments(x: Tensor, over: tuple[int, ...]) -> tuple[Tensor, Tensor] | None:
    """Return mean and biased variance of x over these axes, or None if x lies in an order that no kernel reads."""
    rows = find_rows(over, (x,))
    if rows is None:
        return None
    from fedctta.core import norm_kernels

    shape = [size for d, size in enumerate(x.shape) if d not in over]
    mean, var = norm_kernels.moments(x, rows)
    return mean.view(shape), var.view(shape)


def scale_and_shift(
    x: Tensor, scale: Tensor, shift: Tensor | None, over: tuple[int, ...], top: float | None = None
) -> Tensor:
    """Return x scale + shift; scale and shift have the shape of x without the axes `over`."""
    y: Tensor = _ScaleAndShift.apply(x, scale, shift, over, top)  # type: ignore[no-untyped-call]
    return y


def normalise_fused(
    x: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    top: float | None = None,
    over: tuple[int, ...] | None = None,
) -> Tensor:
    """Return (x - mean) / sqrt(var + eps) weight + bias; there is no gradient.

    The statistics are over all axes of x[B, C, ...] but the channels, or over those given.
    """
    over = over or tuple(d for d in range(x.dim()) if d != 1)
    y: Tensor = _Normalise.apply(x, mean, var, weight, bias, eps, top, over)  # type: ignore[no-untyped-call]
    return y


def blend_plain(
    mean: Tensor, var: Tensor, origin: Tensor, shift: Tensor, rest: Tensor, least: Tensor, share: Tensor
) -> tuple[Tensor, Tensor]:
    """Return a mean and a variance [C] that a share b of a batch's moves away from an origin o.

    With d = mean - o and f = shift + b d these are o + f and max(rest + b (var + d^2) - f^2, least).
    """
    apart = mean - origin
    first = torch.addcmul(shift, apart, share)
    new = torch.addcmul(rest, torch.addcmul(var, apart, apart), share)
    return origin + first, torch.addcmul(new, first, first, value=-1).maximum(least)


def normalise_blended(
    x: Tensor,
    origin: Tensor,
    terms: tuple[Tensor, Tensor, Tensor],
    share: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    top: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return x[B, C, ...] normalised with what `blend_plain` makes of its moments, and these; there is no gradient.

    `terms` are shift, rest and least. With a `top`, the first is min(max(0, .), top) of that.
    """
    over = tuple(d for d in range(x.dim()) if d != 1)
    y, mean, var = _NormaliseBlended.apply(  # type: ignore[no-untyped-call]
        x, origin, *terms, share, weight, bias, eps, top, over
    )
    return y, mean, var


class _NormaliseBlended(torch.autograd.Function):
    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        x, origin, shift, rest, least, share, weight, bias, eps, top, over = arguments
        y = torch.empty_like(x)
        small = (origin, shift, rest, least, origin if weight is None else weight, origin if bias is None else bias)
        rows = find_rows(over, (x, y), small)
        if rows is None or not can_fuse(x, TYPES):
            var, mean = torch.var_mean(x.to(origin.dtype), over, correction=0)
            new = blend_plain(mean, var, origin, shift, rest, least, share.unsqueeze(-1))
            y = _normalise_plain(x, *new, weight, bias, eps, over).to(x.dtype)
            return rectify(y, top), mean, var
        from fedctta.core import norm_kernels

        given = weight is not None, bias is not None
        both = norm_kernels.normalise_blended(x, small, share.reshape(-1).contiguous(), given, eps, top, y, rows)
        mean, var = (each.view(shift.shape) for each in both)
        return y, mean, var

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *arguments: Any
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int, int, int]]:
        *tensors, eps, top, over = arguments
        every = bring_to_front(info, in_dims, tensors)
        found = _NormaliseBlended.apply(*every, eps, top, tuple(d + 1 for d in over))  # type: ignore[no-untyped-call]
        return found, (0, 0, 0)


class _ScaleAndShift(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, scale: Tensor, shift: Tensor | None, over: tuple[int, ...], top: float | None) -> Tensor:
        return _scale(x, scale, shift, over, top)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, scale, shift, ctx.over, ctx.top = inputs
        ctx.save_for_backward(x, scale, *([] if ctx.top is None else [shift]))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None, None]:
        x, scale, *shift = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        if shift:
            found = pull_back(gradients[0], x, scale, shift[0], ctx.top, ctx.over, wanted[0])
            return found[0] if wanted[0] else None, *found[1:], None, None
        of_x = scale_and_shift(gradients[0], scale, None, ctx.over) if wanted[0] else None
        of_shift, of_scale = _Sums.apply(gradients[0], x, ctx.over)  # type: ignore[no-untyped-call]
        return of_x, of_scale, of_shift if wanted[2] else None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
        *tensors, over, top = arguments
        x, scale, shift = bring_to_front(info, in_dims, tensors)
        return scale_and_shift(x, scale, shift, tuple(d + 1 for d in over), top), 0


class _Sums(torch.autograd.Function):
    """The sums of x and of x y over some axes."""

    @staticmethod
    def forward(x: Tensor, y: Tensor, over: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        rows = find_rows(over, (x, y))
        if rows is None or not can_fuse(x):
            return x.sum(over), (x * y).sum(over)
        from fedctta.core import norm_kernels

        shape = [size for d, size in enumerate(x.shape) if d not in over]
        of_x, of_both = norm_kernels.sums(x, y, rows)
        return of_x.view(shape), of_both.view(shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, y, ctx.over = inputs
        ctx.save_for_backward(x, y)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, y = ctx.saved_tensors
        of_x, of_both = (widen(g, ctx.over) for g in gradients)
        return of_x + of_both * y, of_both * x, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, y: Tensor, over: tuple[int, ...]
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        every = bring_to_front(info, in_dims, (x, y))
        return _Sums.apply(*every, tuple(d + 1 for d in over)), (0, 0)  # type: ignore[no-untyped-call]


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        x: Tensor,
        mean: Tensor,
        var: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        top: float | None,
        over: tuple[int, ...],
    ) -> Tensor:
        y = torch.empty_like(x)
        small = (mean, var, mean if weight is None else weight, mean if bias is None else bias)
        rows = find_rows(over, (x, y), small)
        if rows is None or not can_fuse(x):
            return rectify(_normalise_plain(x, mean, var, weight, bias, eps, over), top)
        from fedctta.core import norm_kernels

        norm_kernels.normalise(x, mean, var, weight, bias, eps, top, y, rows)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
        *tensors, eps, top, over = arguments
        every = bring_to_front(info, in_dims, tensors)
        y = _Normalise.apply(*every, eps, top, tuple(d + 1 for d in over))  # type: ignore[no-untyped-call]
        return y, 0


def _normalise_plain(
    x: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    over: tuple[int, ...],
) -> Tensor:
    scale = torch.rsqrt(var + eps)
    scale = scale if weight is None else scale * weight
    shift = -mean * scale if bias is None else torch.addcmul(bias, mean, scale, value=-1)
    return torch.addcmul(widen(shift, over), x, widen(scale, over))


def _scale(x: Tensor, scale: Tensor, shift: Tensor | None, over: tuple[int, ...], top: float | None) -> Tensor:
    y = torch.empty_like(x)
    rows = find_rows(over, (x, y), (scale, scale if shift is None else shift))
    if rows is None or not can_fuse(x):
        wide = widen(scale, over)
        return rectify(x * wide if shift is None else torch.addcmul(widen(shift, over), x, wide), top)
    from fedctta.core import norm_kernels

    norm_kernels.scale(x, scale, shift, top, y, rows)
    return y
