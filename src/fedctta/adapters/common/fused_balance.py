"""Balanced statistics that a GPU computes in one pass, forwards and backwards, by the kernels of `balance_kernels`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedctta.core.gpu_kernels import KernelFunction, can_fuse
from fedctta.core.norms import Statistics

MOST = 64  # images of a batch that one program keeps in registers


def can_fuse_balance(images: Tensor) -> bool:
    """Whether kernels may serve the statistics[B, C] of images, inside vmap or not."""
    return can_fuse(images) and len(images) <= MOST


def balance_fused(
    images: Statistics, classes: Statistics, members: Tensor, rates: Tensor, correction: int
) -> tuple[Statistics, Statistics]:
    """Return the statistics[K, C] of the classes after images[B, C], and those[C] over classes.

    Members[K, B] say which images are of which class, rates[K, 1] how fast a class follows. Only the second result
    has a gradient, and only for images.
    """
    found = _Balance.apply(*images, *classes, members, rates, correction)  # type: ignore[no-untyped-call]
    return Statistics(*found[:2]), Statistics(*found[2:])


class _Balance(KernelFunction):
    """Vmapped, there is an axis of clients in front."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        from fedctta.adapters.common import balance_kernels

        tensors, correction = arguments[:-1], arguments[-1]
        (*images, class_mean, class_var), members, rates = _together(tensors)
        found = balance_kernels.balance((images[0], images[1]), (class_mean, class_var), members, rates, correction)
        like = (tensors[2], tensors[2], tensors[2][..., 0, :], tensors[2][..., 0, :])
        first, second, third, fourth = (one.view(other.shape) for one, other in zip(found, like, strict=True))
        return first, second, third, fourth

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.correction = inputs[-1]
        ctx.mark_non_differentiable(*output[:2])
        ctx.save_for_backward(*inputs[:-1], output[2])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved = (*gradients[2:], *ctx.saved_tensors, ctx.correction)
        of_mean, of_var = _Gradient.apply(*saved)  # type: ignore[no-untyped-call]
        return of_mean, of_var, None, None, None, None, None


class _Gradient(KernelFunction):
    """Of the images' statistics."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
        from fedctta.adapters.common import balance_kernels

        of_mean, of_var, *tensors, mean, correction = arguments
        (image_mean, image_var, *classes), members, rates = _together(tensors)
        flat = [tensor.reshape(len(members), -1).contiguous() for tensor in (of_mean, of_var, mean)]
        images = image_mean, image_var
        found = balance_kernels.balance_gradient(
            (flat[0], flat[1]), images, (classes[0], classes[1]), members, rates, flat[2], correction
        )
        one, other = (gradient.view(tensors[0].shape) for gradient in found)
        return one, other


def _together(tensors: Any) -> tuple[list[Tensor], Tensor, Tensor]:
    """Return the statistics of images and classes without gaps, members[N, K, B] and rates[N K]: one axis in front."""
    *statistics, members, rates = (tensor.reshape(-1, *tensor.shape[-2:]) for tensor in tensors)
    return [tensor.contiguous() for tensor in statistics], members, rates.contiguous().view(-1)
