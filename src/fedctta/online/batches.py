"""From what a user hands over to a batch: tensors or arrays, floats or uint8 images, and images kept for later."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedctta.errors import UserError
from fedctta.models.inputs import as_tensor, to_input

CHANNELS = (1, 3)


def to_batch(images: Tensor | NDArray[Any], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
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
        raise UserError(f"a batch is {x.dtype}: give floats as the model expects them, or uint8 images 0..255")
    elif x.dim() == 4 and x.shape[1] in CHANNELS and x.shape[-1] != 3:
        x = x.to(device).to(dtype) / 255
    else:
        x = to_input(x, device).to(dtype)
    return x.clone() if x.is_inference() else x  # gradients cannot pass through tensors of inference mode


class Window:
    """The last images. A batch that is too small for a method is predicted, and adapted to, among them."""

    def __init__(self, size: int) -> None:
        if size < 0:
            raise UserError(f"window={size} must not be negative")
        self.size = size
        self.clear()

    def clear(self) -> None:
        """Forget all images."""
        self.images: Tensor | None = None
        self.fresh = 0

    def add(self, x: Tensor) -> None:
        """Keep a copy of the last images; those of another shape are forgotten."""
        if not self.size:
            return
        if self.images is None or self.images.shape[1:] != x.shape[1:]:
            self.clear()
        kept = x if self.images is None else torch.cat([self.images.to(x), x])
        self.images = kept[-self.size :].clone()
        self.fresh += len(x)

    @property
    def full(self) -> bool:
        """Whether there are as many images as there is room for."""
        return self.images is not None and len(self.images) == self.size

    def due(self) -> bool:
        """Whether all images are new since the last time this was asked and true: then it is time to adapt."""
        if self.fresh < self.size:
            return False
        self.fresh = 0
        return True
