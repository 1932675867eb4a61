"""Convolutions whose kernels are each client's own.

`torch.func.vmap` makes of N such convolutions one with N times the groups. cuDNN walks through most of these groups one
by one, with kernels too small for a GPU. So, over all clients at once,

    kernels of one group     are one batched matrix product, [pixels, h w C] x [h w C, O] a client, of what each output
                             pixel sees (`_see`); gradients are two more,
    few and narrow groups    are laid out as one kernel, with zeros between the groups,
    all others               have a group for each client and group; so do kernels of one group that cuDNN has fast ones
                             for: on tensor cores, without stride, 64 to 128 channels.

Activations of all clients stay in one order of memory, [B, H, W, N, C], so that nothing is transposed on the way. On a
CPU all of this is slower than a loop over clients (`cpu_convolution`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.core.cpu_convolution import convolve_each, each_gradient
from fedctta.core.gpu_kernels import bring_to_front, can_fuse
from fedctta.core.memory_layout import put_side_by_side, separate_clients
from fedctta.core.moments import SHORT

FAST = range(64, 129)  # channels of kernels for which cuDNN has fast groups on tensor cores
MANY, PIXELS = 128, 10_000  # outputs of a kernel from which on, and pixels up to which, products are faster than cuDNN
FUSED = 16  # channels of a gradient that one kernel adds up, pixel by pixel
NARROW, FEW = 32, 8  # channels in a group, and groups, up to which zeros between groups cost less than the groups


@dataclass(frozen=True)
class Form:
    """All of a convolution but its tensors; no tuple, whose parts `torch.func` would look for tensors."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    @property
    def window(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Stride, padding and dilation, in the order of torch's arguments."""
        return self.stride, self.padding, self.dilation

    def count_outputs(self, x: Tensor, kernel: Tensor) -> tuple[int, int]:
        """Return the height and width of what images[..., H, W] become."""
        sizes = zip(x.shape[-2:], self.padding, self.dilation, kernel.shape[-2:], self.stride, strict=True)
        down, across = ((size + 2 * pad - gap * (side - 1) - 1) // step + 1 for size, pad, gap, side, step in sizes)
        return down, across

    def multiplies(self, x: Tensor, kernel: Tensor) -> bool:
        """Whether a matrix product is faster than groups."""
        outputs, inputs, *sides = kernel.shape[-4:]
        rounded = x.dtype in SHORT or (x.dtype == torch.float32 and torch.backends.cudnn.allow_tf32)
        fast = rounded and self.stride == (1, 1) and sides != [1, 1] and inputs in FAST and outputs in FAST
        return self.groups == 1 and not fast

    def multiplies_shared(self, x: Tensor, kernel: Tensor) -> bool:
        """Whether a matrix product is faster than cuDNN for a kernel that clients share, without a gradient.

        For few pixels of many channels in float32 it takes half to five sixths of the time.
        """
        if not x.is_cuda or x.dtype != torch.float32 or torch.backends.cudnn.allow_tf32 or torch.is_grad_enabled():
            return False
        outputs, _, *sides = kernel.shape
        return self.groups == 1 and sides != [1, 1] and outputs >= MANY

    def narrow(self, kernel: Tensor) -> bool:
        """Whether there are few groups of few channels."""
        return 1 < self.groups <= FEW and kernel.shape[-3] <= NARROW


def convolve(x: Tensor, kernel: Tensor, form: Form) -> Tensor:
    """Convolve x[B, C, H, W] with a kernel[O, C / groups, h, w]: fast under vmap with a kernel for every client."""
    if x.is_cuda and torch.is_autocast_enabled("cuda"):
        x, kernel = (tensor.to(torch.get_autocast_dtype("cuda")) for tensor in (x, kernel))
    result: Tensor = _Convolution.apply(x, kernel, form)  # type: ignore[no-untyped-call]
    return result


class _Convolution(torch.autograd.Function):
    """y = x * kernel. Vmapped, images are folded into one batch if they share the kernel, and stacked if not."""

    @staticmethod
    def forward(x: Tensor, kernel: Tensor, form: Form) -> Tensor:
        if form.multiplies_shared(x, kernel) and len(x) * prod(form.count_outputs(x, kernel)) <= PIXELS:
            return _Many.forward(x[None], kernel[None], form)[0]
        return F.conv2d(x, kernel, None, *form.window, form.groups)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _remember(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        return _wanted(ctx, _Gradients, gradients[0])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, kernel: Tensor, form: Form) -> tuple[Tensor, int]:
        if in_dims[1] is None:
            (x,) = bring_to_front(info, in_dims, (x,))
            together = _Convolution.apply(x.flatten(0, 1), kernel, form)  # type: ignore[no-untyped-call]
            return together.view(*x.shape[:2], *together.shape[1:]), 0
        return _Many.apply(*bring_to_front(info, in_dims, (x, kernel)), form), 0  # type: ignore[no-untyped-call]


class _Many(torch.autograd.Function):
    """The same of N clients: x[N, B, C, H, W], kernels[N, O, C / groups, h, w]. Vmapped, there are more of them."""

    @staticmethod
    def forward(x: Tensor, kernel: Tensor, form: Form) -> Tensor:
        if _one_by_one(x):
            return convolve_each(x, kernel, form)
        if form.multiplies(x, kernel):
            return _multiply(_see(x, kernel, form), _matrices(kernel).mT, x, form.count_outputs(x, kernel))
        whole, groups = _side_by_side_kernels(kernel, form)
        return separate_clients(F.conv2d(put_side_by_side(x), whole, None, *form.window, groups), len(x))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _remember(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        return _wanted(ctx, _ManyGradients, gradients[0])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, kernel: Tensor, form: Form) -> tuple[Tensor, int]:
        x, kernel = bring_to_front(info, in_dims, (x, kernel))
        y = _Many.apply(x.flatten(0, 1), kernel.flatten(0, 1), form)  # type: ignore[no-untyped-call]
        return y.view(*x.shape[:2], *y.shape[1:]), 0


class _Gradients(torch.autograd.Function):
    """Gradients of x and of the kernel; those not wanted are empty."""

    @staticmethod
    def forward(
        gradient: Tensor, x: Tensor, kernel: Tensor, form: Form, wanted: tuple[bool, bool]
    ) -> tuple[Tensor, Tensor]:
        if _one_by_one(x):
            of_x, of_kernel = _of_each(gradient[None], x[None], kernel[None], form, wanted)
            return of_x[0], of_kernel[0]
        return _backward(gradient, x, kernel, form, form.groups, wanted)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        gradient, _, kernel, ctx.form, ctx.wanted = inputs
        if not ctx.wanted[1]:
            ctx.save_for_backward(gradient, kernel)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Of x alone: its gradient is linear in the one it comes from, and in the kernel."""
        if ctx.wanted[1]:
            raise NotImplementedError("second gradients of a client's own kernels")
        gradient, kernel = ctx.saved_tensors
        of_kernel = None
        if ctx.needs_input_grad[2]:
            of_kernel = _Gradients.apply(gradient, gradients[0], kernel, ctx.form, (False, True))[1]  # type: ignore[no-untyped-call]
        return convolve(gradients[0], kernel, ctx.form), None, of_kernel, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], gradient: Tensor, x: Tensor, kernel: Tensor, form: Form, wanted: Any
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int | None]]:
        if in_dims[2] is None and not wanted[1]:
            gradient, x = bring_to_front(info, in_dims, (gradient, x))
            flat = gradient.flatten(0, 1), x.flatten(0, 1)
            of_x, nothing = _Gradients.apply(*flat, kernel, form, wanted)  # type: ignore[no-untyped-call]
            return (of_x.view(x.shape), nothing), (0, None)
        every = bring_to_front(info, in_dims, (gradient, x, kernel))
        return _ManyGradients.apply(*every, form, wanted), (0, 0)  # type: ignore[no-untyped-call]


class _ManyGradients(torch.autograd.Function):
    """The same of N clients."""

    @staticmethod
    def forward(
        gradient: Tensor, x: Tensor, kernel: Tensor, form: Form, wanted: tuple[bool, bool]
    ) -> tuple[Tensor, Tensor]:
        if _one_by_one(x):
            return _of_each(gradient, x, kernel, form, wanted)
        of_x = of_kernel = gradient.new_zeros(len(x), 0)
        if form.multiplies(x, kernel):
            rows = gradient.permute(0, 1, 3, 4, 2).flatten(1, 3)  # [N, pixels, O]
            if wanted[0]:
                of_x = _add_up(rows @ _matrices(kernel), x, kernel, form)
            if wanted[1]:
                of_kernel = _undo_matrices(rows.mT @ _see(x, kernel, form), kernel)
            return of_x, of_kernel
        whole, groups = _side_by_side_kernels(kernel, form)
        of_all, of_whole = _backward(put_side_by_side(gradient), put_side_by_side(x), whole, form, groups, wanted)
        if wanted[0]:
            of_x = separate_clients(of_all, len(x))
        if wanted[1]:
            of_kernel = _own_kernels(of_whole, kernel, form)
        return of_x, of_kernel

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], gradient: Tensor, x: Tensor, kernel: Tensor, form: Form, wanted: Any
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        every = bring_to_front(info, in_dims, (gradient, x, kernel))
        flat = _ManyGradients.apply(*(t.flatten(0, 1) for t in every), form, wanted)  # type: ignore[no-untyped-call]
        counts = every[1].shape[:2]
        of_x, of_kernel = (part.view(*counts, *part.shape[1:]) for part in flat)
        return (of_x, of_kernel), (0, 0)


def _remember(ctx: Any, inputs: tuple[Any, ...]) -> None:
    x, kernel, ctx.form = inputs
    ctx.save_for_backward(x, kernel)


def _wanted(ctx: Any, of: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    wanted = ctx.needs_input_grad[:2]
    of_x, of_kernel = of.apply(gradient, *ctx.saved_tensors, ctx.form, wanted)
    return of_x if wanted[0] else None, of_kernel if wanted[1] else None, None


def _one_by_one(x: Tensor) -> bool:
    """Whether clients are best convolved one after another."""
    return not x.is_cuda


def _of_each(
    gradient: Tensor, x: Tensor, kernel: Tensor, form: Form, wanted: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    def backward(gradient: Tensor, x: Tensor, kernel: Tensor, wanted: tuple[bool, bool]) -> tuple[Tensor, Tensor]:
        return _backward(gradient, x, kernel, form, form.groups, wanted)

    return each_gradient(gradient, x, kernel, form, wanted, backward)


def _backward(
    gradient: Tensor, x: Tensor, kernel: Tensor, form: Form, groups: int, wanted: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    fixed = (None, *(list(part) for part in form.window), False, [0, 0], groups, [*wanted, False])
    of_x, of_kernel, _ = torch.ops.aten.convolution_backward(gradient, x, kernel, *fixed)
    nothing = gradient.new_zeros(0)
    return of_x if wanted[0] else nothing, of_kernel if wanted[1] else nothing


def _see(x: Tensor, kernel: Tensor, form: Form) -> Tensor:
    """Return what every output pixel of x[N, B, C, H, W] sees: [N, pixels, h w C]."""
    if can_fuse(x) and kernel.shape[-2:] != (1, 1):
        from fedctta.core import window_kernels

        return window_kernels.see(x, _sides(kernel), form.count_outputs(x, kernel), form.window)
    return _windows(_pad(x, form), x, kernel, form).flatten(4).flatten(1, 3)


def _add_up(seen: Tensor, x: Tensor, kernel: Tensor, form: Form) -> Tensor:
    """Undo `_see` for a gradient: add up what all output pixels say of a pixel of x."""
    if can_fuse(seen) and x.shape[2] >= FUSED:
        from fedctta.core import window_kernels

        return window_kernels.add_up(seen, x, _sides(kernel), form.count_outputs(x, kernel), form.window)
    padded = torch.zeros_like(_pad(x, form))
    windows = _windows(padded, x, kernel, form)
    parts = seen.view(windows.shape)
    for i, j in product(*map(range, kernel.shape[-2:])):
        windows[..., i, j, :] += parts[..., i, j, :]
    (down, across), (height, width) = form.padding, x.shape[-2:]
    return padded[:, :, down : down + height, across : across + width].permute(0, 1, 4, 2, 3)


def _sides(kernel: Tensor) -> tuple[int, int]:
    height, width = kernel.shape[-2:]
    return height, width


def _pad(x: Tensor, form: Form) -> Tensor:
    """Return x[N, B, C, H, W] as [N, B, H', W', C], with zeros around it, in the common order of memory."""
    last = x.permute(0, 1, 3, 4, 2)
    if form.padding == (0, 0):
        return last
    (down, across), (clients, images, height, width, channels) = form.padding, last.shape
    order = x.new_zeros(images, height + 2 * down, width + 2 * across, clients, channels)
    padded = order.permute(3, 0, 1, 2, 4)
    padded[:, :, down : down + height, across : across + width] = last
    return padded


def _windows(padded: Tensor, x: Tensor, kernel: Tensor, form: Form) -> Tensor:
    """Return the view [N, B, Ho, Wo, h, w, C] of a padded batch: for every output pixel what it sees."""
    clients, images, row, column, channel = padded.stride()
    outputs, sides = form.count_outputs(x, kernel), kernel.shape[-2:]
    return padded.as_strided(
        (*x.shape[:2], *outputs, *sides, x.shape[2]),
        (
            *(clients, images, form.stride[0] * row, form.stride[1] * column),
            *(form.dilation[0] * row, form.dilation[1] * column, channel),
        ),
    )


def _matrices(kernel: Tensor) -> Tensor:
    """Return kernels[N, O, C, h, w] as [N, O, h w C]."""
    return kernel.permute(0, 1, 3, 4, 2).flatten(2)


def _undo_matrices(matrices: Tensor, kernel: Tensor) -> Tensor:
    """Return [N, O, h w C] in the shape of the kernels."""
    clients, outputs, channels, height, width = kernel.shape
    return matrices.view(clients, outputs, height, width, channels).permute(0, 1, 4, 2, 3)


def _multiply(seen: Tensor, matrices: Tensor, x: Tensor, size: tuple[int, int]) -> Tensor:
    """Return seen @ matrices as [N, B, O, Ho, Wo] for the batches x, in the common order of memory."""
    clients, pixels, outputs = len(seen), seen.shape[1], matrices.shape[-1]
    together = seen.new_empty(pixels, clients, outputs)
    torch.bmm(seen, matrices, out=together.transpose(0, 1))
    return together.view(x.shape[1], *size, clients, outputs).permute(3, 0, 4, 1, 2)


def _side_by_side_kernels(kernel: Tensor, form: Form) -> tuple[Tensor, int]:
    """Return kernels[N, O, C / g, h, w] as [N O, c, h, w], channels last, and the number of groups they make."""
    last = kernel.permute(0, 1, 3, 4, 2).contiguous()
    if not form.narrow(kernel):
        return last.flatten(0, 1).permute(0, 3, 1, 2), len(kernel) * form.groups
    clients, outputs, height, width, channels = last.shape
    g = form.groups
    wide = last.new_zeros(clients, g, outputs // g, height, width, g, channels)
    wide.diagonal(dim1=1, dim2=5).copy_(last.view(clients, g, outputs // g, height, width, channels).movedim(1, -1))
    return wide.view(clients * outputs, height, width, g * channels).permute(0, 3, 1, 2), clients


def _own_kernels(of_whole: Tensor, kernel: Tensor, form: Form) -> Tensor:
    """Undo `_side_by_side_kernels`."""
    if not form.narrow(kernel):
        return of_whole.view(len(kernel), -1, *of_whole.shape[1:])
    clients, outputs, channels, height, width = kernel.shape
    g = form.groups
    wide = of_whole.permute(0, 2, 3, 1).reshape(clients, g, outputs // g, height, width, g, channels)
    own = wide.diagonal(dim1=1, dim2=5).movedim(-1, 1)  # [N, g, O / g, h, w, C / g]
    return own.flatten(1, 2).permute(0, 1, 4, 2, 3)
