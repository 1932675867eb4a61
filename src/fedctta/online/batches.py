"""From what a user hands over to a batch: tensors or arrays, floats or uint8 images, and images kept for later.

In a tuple or a mapping of tensors, integers that are no images (words' numbers, masks) pass as they are.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedctta.core.outputs import Inputs, count_rows, map_tensors, tensors_in
from fedctta.core.tensors import add_up
from fedctta.errors import UserError
from fedctta.models.inputs import as_tensor, to_input

CHANNELS = (1, 3)
WINDOW = 16  # images that are kept, unless another number is asked for


Given = Tensor | NDArray[Any]
GivenInputs = Given | tuple[Given, ...] | Mapping[str, Given]


def to_batch(given: GivenInputs, device: torch.device, dtype: torch.dtype = torch.float32) -> Inputs:
    """Return a batch on the device: x[B, ...], or a tuple or dictionary of such tensors."""
    if not isinstance(given, tuple | Mapping):
        return to_tensor(given, device, dtype)
    parts = dict(given) if isinstance(given, Mapping) else dict(enumerate(given))
    if not parts:
        raise UserError("a batch has no tensor: give at least one")
    found = {name: to_part(name, part, device, dtype) for name, part in parts.items()}
    counts = {len(tensor) for tensor in found.values()}
    if len(counts) > 1 or not min(counts):
        said = ", ".join(f"{name!r} {list(tensor.shape)}" for name, tensor in found.items())
        raise UserError(f"a batch has tensors of shapes {said}: all must have as many rows, at least one")
    return found if isinstance(given, Mapping) else tuple(found.values())  # type: ignore[return-value]


def to_part(name: str | int, given: Given, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return one tensor of a batch of several: floats and uint8 images as alone, other integers as they are."""
    try:
        x = as_tensor(given)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{name!r} of a batch is a {type(given).__name__}: give a tensor or an array, or leave it out"
        ) from error
    if not x.dim():
        raise UserError(f"{name!r} of a batch is a single number: give a tensor [batch, ...], or leave it out")
    if x.is_floating_point() or (x.dtype == torch.uint8 and x.dim() == 4):
        return to_tensor(x, device, dtype) if x.dim() > 1 else x.to(device, dtype)
    return _usable(x.to(device))


def to_tensor(images: Given, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return x[B, ...] on the device: floats as they are, uint8 images ([B, H, W, 3] or [B, C, H, W]) in [0, 1]."""
    try:
        x = as_tensor(images)
    except (TypeError, ValueError) as error:
        raise UserError(f"a batch is a {type(images).__name__}: give a tensor or an array [batch, ...]") from error
    if x.dim() < 2 or not len(x):
        raise UserError(f"a batch has shape {list(x.shape)}: give [batch, ...] with at least one image")
    if x.is_floating_point():
        x = x.to(device, dtype)
    elif x.dtype != torch.uint8:
        raise UserError(
            f"a batch is {x.dtype}: give floats as the model expects them, or uint8 images 0..255; integers that it"
            " takes as they are come in a tuple or a dictionary"
        )
    elif x.dim() == 4 and x.shape[1] in CHANNELS and x.shape[-1] != 3:
        x = x.to(device).to(dtype) / 255
    else:
        x = to_input(x, device).to(dtype)
    return _usable(x)


def _usable(x: Tensor) -> Tensor:
    return x.clone() if x.is_inference() else x  # gradients cannot pass through tensors of inference mode


def alone(x: Inputs, first: str) -> Inputs:
    """Return images that came by the name of the module's first input as if without: methods may look at them.

    >>> import torch
    >>> alone({"pixel_values": torch.zeros(2, 3)}, "pixel_values").shape
    torch.Size([2, 3])
    """
    found = x.get(first) if isinstance(x, Mapping) and len(x) == 1 else None
    return found if found is not None and found.is_floating_point() and found.dim() > 1 else x


def first_input(module: nn.Module) -> str:
    """Return the name of the first input of a module that can be given without it, if there is one."""
    try:
        named = next(iter(inspect.signature(module.forward).parameters.values()), None)
    except (TypeError, ValueError):
        return ""
    return named.name if named is not None and named.kind is named.POSITIONAL_OR_KEYWORD else ""


def is_finite(x: Inputs) -> bool:
    """Whether a batch has no NaN and no infinite value."""
    return all(bool(add_up(t).isfinite()) for t in tensors_in(x) if t.is_floating_point())


class Window:
    """The last images. A batch that is too small for a method is predicted, and adapted to, among them."""

    def __init__(self, size: int) -> None:
        if size < 0:
            raise UserError(f"window={size} must not be negative")
        self.size = size
        self.clear()

    def clear(self) -> None:
        """Forget all images."""
        self.images: Inputs | None = None
        self.fresh = 0

    def add(self, x: Inputs) -> None:
        """Keep a copy of the last images; those of another shape are forgotten."""
        if not self.size:
            return
        if self.images is None or _form(self.images) != _form(x):
            self.clear()
        kept = x if self.images is None else _join(self.images, x)
        self.images = map_tensors(lambda t: t[-self.size :].clone(), kept)
        self.fresh += count_rows(x)

    @property
    def full(self) -> bool:
        """Whether there are as many images as there is room for."""
        return self.images is not None and count_rows(self.images) == self.size

    def due(self) -> bool:
        """Whether all images are new since the last time this was asked and true: then it is time to adapt."""
        if self.fresh < self.size:
            return False
        self.fresh = 0
        return True


def form_of(x: Inputs) -> Hashable:
    """Return what a model and a method must be able to take: names, shapes but for the rows, and types."""
    return type(x), *_form(x), *(tensor.dtype for tensor in tensors_in(x))


def _form(x: Inputs) -> list[tuple[object, torch.Size]]:
    names = x if isinstance(x, Mapping) else range(len(tensors_in(x)))
    return [(name, tensor.shape[1:]) for name, tensor in zip(names, tensors_in(x), strict=True)]


def _join(old: Inputs, new: Inputs) -> Inputs:
    """Return the rows of both batches, which have the same form, on the device and in the precision of the new one."""
    former = iter(tensors_in(old))
    return map_tensors(lambda t: torch.cat([next(former).to(t), t]), new)
