"""From stored images to what a network reads, the same way everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedctta.errors import UserError


def to_input(images: NDArray[Any] | Tensor, device: torch.device | str | None = None) -> Tensor:
    """Turn uint8 images [..., B, H, W, 3] into float32 [..., B, 3, H, W] in [0, 1].

    The bytes travel to `device` (default: where they are) before they grow to floats, and the result keeps
    the channels-last memory they came in. Leading axes, such as one for clients, are kept.
    """
    if images.ndim < 4 or images.shape[-1] != 3:
        raise UserError(f"images have shape {list(images.shape)}: give [batch, height, width, 3]")
    if images.dtype not in (np.uint8, torch.uint8):
        raise UserError(f"images are {images.dtype}: give uint8 values 0..255")
    return read_batch(images, device)


def read_batch(images: NDArray[Any] | Tensor, device: torch.device | str | None = None) -> Tensor:
    """Turn stored images of any kind into what a model reads: pictures (uint8 [..., H, W, C]) as `to_input` does.

    Floats are for the model as they are: [..., C, H, W] images, [..., C, T] series, [..., F] tables.
    """
    x = as_tensor(images).to(device)
    return x.movedim(-1, -3).float() / 255 if x.dtype == torch.uint8 else x


def as_tensor(array: NDArray[Any] | Tensor) -> Tensor:
    """View an array as a tensor; a read-only one (a memory map) is copied, as torch has no such tensors."""
    if isinstance(array, Tensor):
        return array
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


class Normalise(nn.Module):
    """Per-channel (x - mean) / std, as the first layer of a network.

    The constants belong to the architecture, not to the weights, so they are not part of the state dict: the
    same checkpoint loads with and without them.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).reshape(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).reshape(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised images."""
        return (x - self.mean) / self.std
