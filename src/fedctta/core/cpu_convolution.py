"""Convolutions of N clients with kernels of their own, on a CPU: client by client, with channels last.

With oneDNN that is faster than one convolution with N groups. Its gradient of a kernel is slow where there are few
pixels: there the gradient is one matrix product a client,

    dL/dkernel[O, h w C] = sum over pixels of dL/dy[O] patch[h w C]

Clients that have just received the same model hold one kernel in memory (`aggregators: mix`): they are convolved at
once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from fedctta.core.convolution import Form

FEW_PIXELS = 200  # of all images of a client, up to which a matrix product is faster

Backward = Callable[[Tensor, Tensor, Tensor, tuple[bool, bool]], tuple[Tensor, Tensor]]


def convolve_each(x: Tensor, kernel: Tensor, form: Form) -> Tensor:
    """Convolve x[N, B, C, H, W] with kernels[N, O, C / groups, h, w]."""
    if _is_one(kernel):
        together = F.conv2d(_last(x.flatten(0, 1)), _last(kernel[0]), None, *form.window, form.groups)
        return together.view(*x.shape[:2], *together.shape[1:])
    every = zip(x, kernel, strict=True)
    return _together([F.conv2d(_last(one), _last(own), None, *form.window, form.groups) for one, own in every])


def each_gradient(
    gradient: Tensor, x: Tensor, kernel: Tensor, form: Form, wanted: tuple[bool, bool], backward: Backward
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and kernels, given that of y[N, B, O, H', W']; those not wanted are empty."""
    multiplied = wanted[1] and _multiplies(gradient, form)
    at_once = wanted[0] and _is_one(kernel)
    asked = (wanted[0] and not at_once, wanted[1] and not multiplied)
    every = zip(gradient, x, kernel, strict=True)
    parts = [backward(_last(g), _last(one), _last(own), asked) for g, one, own in every] if any(asked) else []
    of_x = of_kernel = gradient.new_zeros(len(x), 0)
    if at_once:
        flat = (_last(gradient.flatten(0, 1)), _last(x.flatten(0, 1)), _last(kernel[0]))
        of_x = backward(*flat, (True, False))[0].view(x.shape)
    elif wanted[0]:
        of_x = _together([part[0] for part in parts])
    if multiplied:
        of_kernel = _multiply(gradient, x, kernel, form)
    elif wanted[1]:
        of_kernel = _together([part[1] for part in parts])
    return of_x, of_kernel


def _is_one(kernel: Tensor) -> bool:
    """Whether all clients' kernels lie at one place in memory."""
    return kernel.stride(0) == 0


def _multiplies(gradient: Tensor, form: Form) -> bool:
    pixels = gradient.shape[1] * gradient.shape[3] * gradient.shape[4]
    return form.groups == 1 and form.dilation == (1, 1) and pixels <= FEW_PIXELS


def _multiply(gradient: Tensor, x: Tensor, kernel: Tensor, form: Form) -> Tensor:
    """Return the gradient of kernels by matrix products."""
    _, outputs, channels, height, width = kernel.shape
    down, across = form.padding
    padded = F.pad(x.permute(0, 1, 3, 4, 2), (0, 0, across, across, down, down))
    patches = padded.unfold(2, height, form.stride[0]).unfold(3, width, form.stride[1])  # [N, B, H', W', C, h, w]
    rows = patches.permute(0, 1, 2, 3, 5, 6, 4).flatten(4).flatten(1, 3)
    product = gradient.permute(0, 2, 1, 3, 4).flatten(2) @ rows
    return product.view(len(x), outputs, height, width, channels).permute(0, 1, 4, 2, 3)


def _last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def _together(parts: list[Tensor]) -> Tensor:
    """Stack tensors of four axes, and keep their channels last in memory."""
    return torch.cat(parts).view(len(parts), *parts[0].shape)
