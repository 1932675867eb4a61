"""Mean and variance over some axes of a tensor, with a gradient of one pass."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from fedctta.core.fused_norms import fused_moments, scale_and_shift
from fedctta.core.gpu_kernels import can_fuse
from fedctta.core.lone import is_lone

SHORT = (torch.bfloat16, torch.float16)
LARGE = 100_000  # numbers of one client, from which on a loop over clients is faster than all at once on a CPU
PIXELS = 64  # of an image, from which on images are summed up one by one on a GPU


def moments(x: Tensor, over: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the mean and the biased variance of x over the axes `over`, which are gone."""
    alone = not can_fuse(x) and (x.is_cuda or x.numel() < LARGE or is_lone(x))
    of = _moments if alone and not torch.is_grad_enabled() else _Moments.apply
    mean, var = of(x, over)
    return mean, var


def _moments(x: Tensor, over: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    if x.dtype in SHORT:  # summed in full, without a copy of x in full
        mean = x.mean(over, dtype=torch.float32)
        length = torch.linalg.vector_norm(x, dim=over, dtype=torch.float32)
        return mean, (length.square() * (mean.numel() / x.numel()) - mean.square()).clamp_min(0)
    if can_fuse(x) and (fused := fused_moments(x, over)) is not None:
        return fused
    if x.is_cuda:
        return _of_parts(x, over)
    if is_lone(x):
        if len(over) == x.dim() - 1 and 1 not in over:
            return _of_channels(x)
        if len(over) == x.dim() - 2 and not {0, 2} & {*over} and x[0].numel() >= LARGE:
            each = [_of_channels(one) for one in x]
            return torch.stack([mean for mean, _ in each]), torch.stack([var for _, var in each])
    mean = x.mean(over, keepdim=True)  # on a CPU two plain passes are several times faster than torch.var_mean
    return mean.squeeze(over), (x - mean).square().mean(over)


def _of_channels(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of every channel of x[B, C, ...] by torch's pass for BatchNorm, which is the fastest."""
    mean, var = torch.batch_norm_update_stats(x, None, None, 0.0)
    return mean, var


def _of_parts(x: Tensor, over: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return both on a GPU, of large images image by image: sums over few long columns would leave most of it idle.

    The variance is the mean of the images' variances, and the variance of their means.
    """
    images, *others = over
    if others[:1] != [images + 2] or prod(x.shape[d] for d in others) < PIXELS:  # channels lie between
        var, mean = torch.var_mean(x, dim=over, correction=0)
        return mean, var
    each, means = torch.var_mean(x, dim=others, correction=0)
    between, mean = torch.var_mean(means, dim=images, correction=0)
    return mean, each.mean(images) + between


class _Moments(torch.autograd.Function):
    """The gradient is (g_mean + 2 g_var (x - mean)) / n, a multiple of x and a constant."""

    @staticmethod
    def forward(x: Tensor, over: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        return _moments(x, over)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, over: tuple[int, ...]
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        every = x.movedim(in_dims[0] or 0, 0)
        mean, var = _Moments.apply(every, tuple(d + 1 for d in over))  # type: ignore[no-untyped-call]
        return (mean, var), (0, 0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, ctx.over = inputs
        ctx.save_for_backward(x, output[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        x, mean = ctx.saved_tensors
        share = mean.numel() / x.numel()
        slope = gradients[1] * (2 * share)
        shift = gradients[0] * share - slope * mean
        if can_fuse(x):
            return scale_and_shift(x, slope, shift, ctx.over), None
        shape = [1 if d in ctx.over else size for d, size in enumerate(x.shape)]
        return torch.addcmul(shift.to(x.dtype).view(shape), x, slope.to(x.dtype).view(shape)), None
