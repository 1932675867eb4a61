"""Changes of a client's weights that a GPU computes in one pass, by the kernels of `step_kernels`; no gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedctta.core.gpu_kernels import KernelFunction, can_fuse
from fedctta.core.memory_layout import row_by_row


def can_fuse_steps(*tensors: Tensor) -> bool:
    """Whether kernels may serve these tensors, inside vmap or not."""
    return not torch.is_grad_enabled() and all(map(can_fuse, tensors))


def adam_fused(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor], scales: tuple[Tensor, Tensor], rates: tuple[float, float, float]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return weight, first and second moment after a step of Adam, of weight, slope and both moments before.

    The scales are 1 - beta1^t and 1 - beta2^t, the rates lr, 1 - beta1 and 1 - beta2.
    """
    weight, first, second = _Adam.apply(*tensors, *scales, rates)  # type: ignore[no-untyped-call]
    return weight, first, second


def restore_fused(weight: Tensor, source: Tensor, key: Tensor, share: float) -> Tensor | None:
    """Return a weight with every number set back to the source's by chance; None if it lies in an unusual order."""
    if not (source.is_contiguous() if source.dim() < 4 else source.is_contiguous(memory_format=torch.channels_last)):
        return None
    new: Tensor = _Restore.apply(weight, source, key, share)  # type: ignore[no-untyped-call]
    return new


class _Adam(KernelFunction):
    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        from fedctta.adapters.common import step_kernels

        *tensors, scale1, scale2, rates = arguments
        rows = scale1.numel()
        weight = tensors[0].reshape(rows, *tensors[0].shape[scale1.dim() :])
        if not row_by_row(weight):
            weight = weight.contiguous()
        same = [_lie_like(weight, tensor.reshape(weight.shape)) for tensor in tensors[1:]]
        new = torch.empty_like(weight), torch.empty_like(weight), torch.empty_like(weight)
        scales = scale1.reshape(-1).contiguous(), scale2.reshape(-1).contiguous()
        step_kernels.adam((weight, *same), scales, new, rates)
        first, second, third = (tensor.view(tensors[0].shape) for tensor in new)
        return first, second, third


class _Restore(KernelFunction):
    @staticmethod
    def forward(weight: Tensor, source: Tensor, key: Tensor, share: float) -> Tensor:
        from fedctta.adapters.common import step_kernels

        rows = _lie_like(source.expand(key.numel(), *source.shape), weight.reshape(key.numel(), *source.shape))
        new = torch.empty_like(rows)
        step_kernels.restore(rows, source, key.reshape(-1).contiguous(), new, share)
        return new.view(weight.shape)


def _lie_like(rows: Tensor, tensor: Tensor) -> Tensor:
    """Return a tensor as rows that follow one another, each in the order of these rows."""
    inner, size = rows.stride()[1:], tensor[0].numel()
    if tensor.stride() == (size, *inner):
        return tensor
    return tensor.new_empty(tensor.numel()).as_strided(tensor.shape, (size, *inner)).copy_(tensor)
