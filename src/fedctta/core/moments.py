"""Mean and variance over some axes of a tensor, with a gradient of one pass."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

SHORT = (torch.bfloat16, torch.float16)
PIXELS = 64  # of an image, from which on images are summed up one by one on a GPU


def moments(x: Tensor, over: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the mean and the biased variance of x over the axes `over`, which are gone."""
    of = _Moments.apply if torch.is_grad_enabled() else _moments
    mean, var = of(x, over)
    return mean, var


def _moments(x: Tensor, over: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    if x.dtype in SHORT:  # summed in full, without a copy of x in full
        mean = x.mean(over, dtype=torch.float32)
        length = torch.linalg.vector_norm(x, dim=over, dtype=torch.float32)
        return mean, (length.square() * (mean.numel() / x.numel()) - mean.square()).clamp_min(0)
    if x.is_cuda:
        return _of_parts(x, over)
    mean = x.mean(over, keepdim=True)  # on a CPU two plain passes are several times faster than torch.var_mean
    return mean.squeeze(over), (x - mean).square().mean(over)


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

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, over: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        return _moments(x, over)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, ctx.over = inputs
        ctx.save_for_backward(x, output[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        x, mean = ctx.saved_tensors
        share = mean.numel() / x.numel()
        shape = [1 if d in ctx.over else size for d, size in enumerate(x.shape)]
        slope = gradients[1] * (2 * share)
        shift = gradients[0] * share - slope * mean
        return torch.addcmul(shift.to(x.dtype).view(shape), x, slope.to(x.dtype).view(shape)), None
