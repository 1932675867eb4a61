"""Convolutions of N clients with kernels of their own, on a CPU: client by client, with channels last.

With oneDNN that is faster than one convolution with N groups. But it arranges a kernel anew whenever it is used, which
takes longest where there are few pixels, and its gradient of a kernel is slow there. Where there are few, all of these
are one matrix product per client: with patch[h w C], what an output pixel sees,

    y[O] = kernel[O, h w C] patch[h w C]
    dL/dpatch[h w C] = sum over O of kernel[O, h w C] dL/dy[O], and dL/dx adds up what all patches say of a pixel
    dL/dkernel[O, h w C] = sum over pixels of dL/dy[O] patch[h w C]

Clients that have just received the same model hold one kernel in memory (`aggregators.common.mixing: mix`): they are
convolved at once.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from fedctta.core.convolution import Form

FEW_PIXELS = 200  # of all outputs of a client, up to which products are faster for the gradient of a kernel
FEWER_PIXELS = 64  # the same for outputs and the gradient of images
POINTWISE = 640  # the same for all three, of kernels of one pixel

Backward = Callable[[Tensor, Tensor, Tensor, tuple[bool, bool]], tuple[Tensor, Tensor]]


def convolve_each(x: Tensor, kernel: Tensor, form: Form) -> Tensor:
    """Convolve x[N, B, C, H, W] with kernels[N, O, C / groups, h, w]."""
    if _is_one(kernel):
        together = F.conv2d(_last(x.flatten(0, 1)), _last(kernel[0]), None, *form.window, form.groups)
        return together.view(*x.shape[:2], *together.shape[1:])
    if _multiplies(kernel, form, x.shape[1] * prod(form.count_outputs(x, kernel)), FEWER_PIXELS):
        return _multiply(x, kernel, form)
    every = zip(x, kernel, strict=True)
    return _together([F.conv2d(_last(one), _last(own), None, *form.window, form.groups) for one, own in every])


def each_gradient(
    gradient: Tensor, x: Tensor, kernel: Tensor, form: Form, wanted: tuple[bool, bool], backward: Backward
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and kernels, given that of y[N, B, O, H', W']; those not wanted are empty."""
    pixels = gradient.shape[1] * gradient.shape[3] * gradient.shape[4]
    of_x_multiplied, multiplied = (_multiplies(kernel, form, pixels, few) for few in (FEWER_PIXELS, FEW_PIXELS))
    at_once = _is_one(kernel)
    asked = (wanted[0] and not at_once and not of_x_multiplied, wanted[1] and not multiplied)
    every = zip(gradient, x, kernel, strict=True)
    parts = [backward(_last(g), _last(one), _last(own), asked) for g, one, own in every] if any(asked) else []
    of_x = of_kernel = gradient.new_zeros(len(x), 0)
    if wanted[0] and at_once:
        flat = (_last(gradient.flatten(0, 1)), _last(x.flatten(0, 1)), _last(kernel[0]))
        of_x = backward(*flat, (True, False))[0].view(x.shape)
    elif asked[0]:
        of_x = _together([part[0] for part in parts])
    elif wanted[0]:
        of_x = _multiply_back(gradient, x, kernel, form)
    if wanted[1] and multiplied:
        of_kernel = _multiply_kernels(gradient, x, kernel, form)
    elif wanted[1]:
        of_kernel = _together([part[1] for part in parts])
    return of_x, of_kernel


def _is_one(kernel: Tensor) -> bool:
    """Whether all clients' kernels lie at one place in memory."""
    return kernel.stride(0) == 0


def _multiplies(kernel: Tensor, form: Form, pixels: int, few: int) -> bool:
    """Whether matrix products serve so many output pixels of a client."""
    most = POINTWISE if kernel.shape[-2:] == (1, 1) else few
    return form.groups == 1 and form.dilation == (1, 1) and pixels <= most


def _multiply(x: Tensor, kernel: Tensor, form: Form) -> Tensor:
    """Convolve by matrix products."""
    y = _see(x, kernel, form) @ kernel.permute(0, 1, 3, 4, 2).flatten(2).mT
    return y.view(*x.shape[:2], *form.count_outputs(x, kernel), -1).permute(0, 1, 4, 2, 3)


def _multiply_back(gradient: Tensor, x: Tensor, kernel: Tensor, form: Form) -> Tensor:
    """Return the gradient of images by matrix products."""
    (down, across), (height, width) = form.padding, x.shape[-2:]
    (rows, columns), (step_down, step_across) = gradient.shape[-2:], form.stride
    seen = gradient.permute(0, 1, 3, 4, 2).flatten(1, 3) @ kernel.permute(0, 1, 3, 4, 2).flatten(2)
    parts = seen.view(*x.shape[:2], rows, columns, *kernel.shape[-2:], x.shape[2])
    padded = x.new_zeros(*x.shape[:2], height + 2 * down, width + 2 * across, x.shape[2])
    for i, j in product(*map(range, kernel.shape[-2:])):
        down_to, across_to = i + step_down * (rows - 1) + 1, j + step_across * (columns - 1) + 1
        padded[:, :, i:down_to:step_down, j:across_to:step_across] += parts[..., i, j, :]
    return padded[:, :, down : down + height, across : across + width].permute(0, 1, 4, 2, 3)


def _multiply_kernels(gradient: Tensor, x: Tensor, kernel: Tensor, form: Form) -> Tensor:
    """Return the gradient of kernels by matrix products."""
    _, outputs, channels, height, width = kernel.shape
    whole = gradient.permute(0, 2, 1, 3, 4).flatten(2) @ _see(x, kernel, form)
    return whole.view(len(x), outputs, height, width, channels).permute(0, 1, 4, 2, 3)


def _see(x: Tensor, kernel: Tensor, form: Form) -> Tensor:
    """Return what every output pixel of x[N, B, C, H, W] sees: [N, pixels, h w C]."""
    (down, across), (height, width) = form.padding, kernel.shape[-2:]
    padded = F.pad(x.permute(0, 1, 3, 4, 2), (0, 0, across, across, down, down))
    patches = padded.unfold(2, height, form.stride[0]).unfold(3, width, form.stride[1])  # [N, B, H', W', C, h, w]
    return patches.permute(0, 1, 2, 3, 5, 6, 4).flatten(4).flatten(1, 3)


def _last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def _together(parts: list[Tensor]) -> Tensor:
    """Stack tensors of four axes, and keep their channels last in memory."""
    return torch.cat(parts).view(len(parts), *parts[0].shape)
