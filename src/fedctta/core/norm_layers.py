"""Layers that compute the same as torch's own, but with given statistics and in a way that vmap batches.

Some libraries derive their layers from BatchNorm or GroupNorm and override `forward`, to add an activation or to move
axes. Their `forward` runs as it is; only its call of `F.batch_norm` or `F.group_norm` is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from fedctta.core import fused_norms
from fedctta.core.gpu_kernels import can_fuse
from fedctta.core.lone import is_lone
from fedctta.core.moments import moments
from fedctta.core.rectified_gradients import rectify

# Names of layers that normalise, in libraries that derive theirs from `nn.Module`
_NORM_NAME = re.compile(r"(Batch|Layer|Group|Instance|RMS|Rms)_?Norm")
_NORMS = (nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, nn.RMSNorm, _BatchNorm)
_PLAIN = {_BatchNorm.forward, nn.SyncBatchNorm.forward, nn.GroupNorm.forward}


class Intercept(TorchFunctionMode):
    """Replace the calls of one function of torch, while this context is open; `calls` counts them."""

    def __init__(self, function: Callable[..., Tensor], instead: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function, self.instead, self.calls = function, instead, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the replacement in place of the function."""
        if func is not self.function:
            return func(*args, **(kwargs or {}))
        self.calls += 1
        return self.instead(*args, **(kwargs or {}))


def keeps_statistics(layer: nn.Module) -> TypeGuard[_BatchNorm]:
    """Whether this is a BatchNorm layer that normalises with stored statistics; others always use the batch's."""
    return isinstance(layer, _BatchNorm) and layer.running_mean is not None


def normalises(layer: nn.Module) -> bool:
    """Whether the scale and shift of this layer follow a normalisation, judged by its class."""
    return isinstance(layer, _NORMS) or _NORM_NAME.search(type(layer).__name__) is not None


def overrides_forward(layer: nn.Module) -> bool:
    """Whether a layer derived from BatchNorm or GroupNorm does more than normalise."""
    return type(layer).forward not in _PLAIN


def normalise(
    x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, bias: Tensor | None, top: float | None = None
) -> Tensor:
    """Return (x - mean) scale weight + bias; mean and scale have the shape [C], or [B, C] with values of each image.

    With a `top`, min(max(0, .), top) of that.
    """
    return scale_and_shift(x, *fold(mean, scale, weight, bias), top)


def fold(mean: Tensor, scale: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the scale and the shift that normalise."""
    scale = scale if weight is None else scale * weight
    return scale, -mean * scale if bias is None else torch.addcmul(bias, mean, scale, value=-1)


def scale_and_shift(x: Tensor, scale: Tensor, shift: Tensor, top: float | None = None) -> Tensor:
    """Return x scale + shift, or with a `top` min(max(0, .), top) of that."""
    if scale.dim() == 1 and scale.dtype == shift.dtype == torch.float32 and can_fuse(x):
        return fused_norms.scale_and_shift(x, scale, shift, tuple(d for d in range(x.dim()) if d != 1), top)
    over = (*scale.shape, *[1] * (x.dim() - 2))
    return rectify(torch.addcmul(shift.to(x.dtype).view(over), x, scale.to(x.dtype).view(over)), top)


def batch_norm(
    x: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    top: float | None = None,
) -> Tensor:
    """Normalise with given statistics; of one client on a CPU, without a gradient, in torch's one pass.

    With a `top`, return min(max(0, .), top) of that.
    """
    alone = all(is_lone(tensor) for tensor in (x, mean, var, weight, bias) if tensor is not None)
    if alone and mean.dim() == 1 and x.dtype == mean.dtype and not torch.is_grad_enabled():
        return rectify(torch.batch_norm(x, weight, bias, mean, var, False, 0.0, eps, False), top)
    if mean.dim() == 1 and can_fuse(x) and not torch.is_grad_enabled():
        return fused_norms.normalise_fused(x, mean, var, weight, bias, eps, top)
    return normalise(x, mean, torch.rsqrt(var + eps), weight, bias, top)


def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Compute `F.group_norm`, whose own kernel on a CPU takes no channels-last images inside vmap."""
    size = x.shape[1] // num_groups
    groups = x.view(len(x), num_groups, size, *x.shape[2:])
    mean, var = moments(groups, tuple(range(2, groups.dim())))
    return normalise(x, _widen(mean, size), _widen(torch.rsqrt(var + eps), size), weight, bias)


def run_group_norm(layer: nn.GroupNorm, x: Tensor) -> Tensor:
    """Run a GroupNorm layer, or one derived from it, in a way that vmap batches."""
    if not overrides_forward(layer):
        return group_norm(x, layer.num_groups, layer.weight, layer.bias, layer.eps)
    with Intercept(F.group_norm, group_norm):
        y: Tensor = type(layer).forward(layer, x)
    return y


def global_average(x: Tensor) -> Tensor:
    """Average as `nn.AdaptiveAvgPool2d(1)` does; torch's own falls back to a loop for channels-last inside vmap."""
    return x.mean((-2, -1), keepdim=True)


def _widen(values: Tensor, size: int) -> Tensor:
    """Return values[B, G] of groups for every channel: [B, G size]."""
    return values.unsqueeze(-1).expand(*values.shape, size).flatten(1)
