"""A small U-Net with BatchNorm: logits for every pixel."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedctta.errors import UserError
from fedctta.models.resnet import conv

SHRINK = 4
"""How many times smaller the lowest level is than the image."""


def block(inputs: int, outputs: int) -> nn.Sequential:
    """Make two rounds of 3x3 convolution, BatchNorm and ReLU."""
    first = (conv(inputs, outputs, 3), nn.BatchNorm2d(outputs), nn.ReLU())
    return nn.Sequential(*first, conv(outputs, outputs, 3), nn.BatchNorm2d(outputs), nn.ReLU())


class UNet(nn.Module):
    """Three levels of 1, 2 and 4 times `width` channels; on the way up, each level joins what it saw on the way down.

    It reads raw [0, 1] images whose sides are multiples of 4. The head is a linear layer over each pixel's channels, so
    its input holds the features [B, H, W, width] of every pixel.
    """

    def __init__(self, classes: int = 10, width: int = 16) -> None:
        super().__init__()
        self.top = block(3, width)
        self.middle = block(width, 2 * width)
        self.bottom = block(2 * width, 4 * width)
        self.up_middle = block(6 * width, 2 * width)
        self.up_top = block(3 * width, width)
        self.last_stage = ("up_top.",)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [B, classes, H, W] of images [B, 3, H, W]."""
        height, width = x.shape[-2:]
        if height % SHRINK or width % SHRINK:
            raise UserError(f"unet cannot read images of {height} x {width}: resize them to multiples of {SHRINK}")
        top = self.top(x)
        middle = self.middle(F.max_pool2d(top, 2))
        bottom = self.bottom(F.max_pool2d(middle, 2))
        middle = self.up_middle(torch.cat([_double(bottom), middle], 1))
        top = self.up_top(torch.cat([_double(middle), top], 1))
        logits: Tensor = self.head(top.movedim(1, -1))
        return logits.movedim(-1, 1)


def _double(x: Tensor) -> Tensor:
    """Repeat every pixel in both directions."""
    return F.interpolate(x, scale_factor=2, mode="nearest")
