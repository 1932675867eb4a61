"""Kernels that a model never changes, kept in the order in which oneDNN multiplies.

For small batches on a CPU, oneDNN spends a quarter of a pass on bringing kernels into an order of its own, the same in
every pass. These are kept here. The first answer with a packed kernel must be that of torch's own convolution, bit by
bit; where it is not, or where torch cannot pack, kernels are used as they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedctta.core.lone import is_lone


class _Packed(NamedTuple):
    of: Tensor  # the kernel that was packed, and how often it had been changed in place before
    version: int
    kernel: Tensor | None  # None: it is of no use


class PackedKernels:
    """The packed kernels of one model, by the names of their layers; a copy begins with none."""

    def __init__(self) -> None:
        self._known: dict[str, _Packed] = {}

    def __deepcopy__(self, memo: Any) -> PackedKernels:
        return PackedKernels()

    def __reduce__(self) -> tuple[type[PackedKernels], tuple[()]]:
        return PackedKernels, ()

    def convolve(self, name: str, layer: nn.Conv2d, x: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
        """Convolve as the layer does with a kernel that all clients share."""
        if not _is_packable(x, kernel):
            return _plain(layer, x, kernel, bias)
        known = self._known.get(name)
        if known is None or known.of is not kernel or known.version != kernel._version:
            y = _plain(layer, x, kernel, bias)
            self._known[name] = _Packed(kernel, kernel._version, _pack(layer, x, kernel, bias, y))
            return y
        return _plain(layer, x, kernel, bias) if known.kernel is None else _multiply(layer, x, known.kernel, bias)


def _is_packable(x: Tensor, kernel: Tensor) -> bool:
    """Whether this is a pass of one client on a CPU, without a gradient, in float32.

    What looks at operations (a counter of arithmetic, for one) does not know the one with packed kernels.
    """
    alone = is_lone(x) and is_lone(kernel) and not torch.is_grad_enabled() and not torch._C._len_torch_dispatch_stack()
    return alone and x.dim() == 4 and x.dtype == kernel.dtype == torch.float32 and not kernel.is_inference()


def _pack(layer: nn.Conv2d, x: Tensor, kernel: Tensor, bias: Tensor | None, y: Tensor) -> Tensor | None:
    """Return the kernel packed for inputs like x; None if it does not give y."""
    try:
        reorder: Any = torch._C._nn.mkldnn_reorder_conv2d_weight
        form = (layer.padding, layer.stride, layer.dilation, layer.groups)
        packed: Tensor = reorder(kernel.to_mkldnn(), *form, list(x.shape))
        found = _multiply(layer, x, packed, bias)
    except (RuntimeError, AttributeError):
        return None
    return packed if torch.equal(found, y) and found.stride() == y.stride() else None


def _multiply(layer: nn.Conv2d, x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    x = x.contiguous(memory_format=torch.channels_last)
    form = (layer.padding, layer.stride, layer.dilation, layer.groups)
    y: Tensor = torch.ops.mkldnn._convolution_pointwise(x, packed, bias, *form, "none", [], "")
    return y


def _plain(layer: nn.Conv2d, x: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = nn.Conv2d._conv_forward(layer, x, kernel, bias)
    return y
