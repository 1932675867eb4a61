"""Parts of a random view that a GPU computes in one pass, by the kernels of `view_kernels`; there is no gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from fedctta.core.gpu_kernels import KernelFunction, can_fuse

LARGEST = 128 * 128  # pixels of an image that one program keeps in registers


def can_fuse_views(x: Tensor) -> bool:
    """Whether kernels may serve images x[B, 3, H, W], inside vmap or not."""
    return can_fuse(x) and not torch.is_grad_enabled() and x.shape[-2] * x.shape[-1] <= LARGEST


def jitter_fused(x: Tensor, settings: Tensor) -> Tensor:
    """Return images x[B, 3, H, W], held in [0, 1], with the five changes of colour settings[5, 5]."""
    y: Tensor = _Jitter.apply(x, settings)  # type: ignore[no-untyped-call]
    return y


def add_noise_fused(x: Tensor, key: Tensor, strength: float) -> Tensor:
    """Return x with normal noise that depends on the key, held in [0, 1]."""
    y: Tensor = _AddNoise.apply(x, key, strength)  # type: ignore[no-untyped-call]
    return y


class _Jitter(KernelFunction):
    """Vmapped, there are axes in front of both."""

    @staticmethod
    def forward(x: Tensor, settings: Tensor) -> Tensor:
        from fedctta.adapters.common import view_kernels

        axes = x.shape[:-4]
        wide = [t[(None,) * max(0, 2 - len(axes))] for t in (x, settings)]
        if len(axes) > 2:
            wide = [wide[0].flatten(0, len(axes) - 2), wide[1].flatten(0, len(axes) - 2)]
        return view_kernels.jitter(*wide).view(x.shape)


class _AddNoise(KernelFunction):
    """Vmapped, there are axes in front of both."""

    @staticmethod
    def forward(x: Tensor, key: Tensor, strength: float) -> Tensor:
        from fedctta.adapters.common import view_kernels

        each = x.reshape(key.numel(), *x.shape[key.dim() :]).contiguous()
        return view_kernels.add_noise(each, key.reshape(-1).contiguous(), strength).view(x.shape)
