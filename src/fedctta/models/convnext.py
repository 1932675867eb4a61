"""A small ConvNeXt (Liu et al., CVPR 2022) for small images: convolutions and LayerNorm over channels only.

    x <- x + s * narrow(gelu(widen(LN(depthwise(x)))))        s: the layer scale, a number for every channel

Its widths and depths are those of ConvNeXt-Atto. For small images the stem halves the image in place of quartering it,
and depthwise kernels are 5 x 5 in place of 7 x 7. Inside, an image is [B, h, w, channels].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedctta.errors import UserError
from fedctta.models.inputs import Normalise
from fedctta.models.resnet import CIFAR10_MEAN, CIFAR10_STD
from fedctta.models.segformer import convolve

LAYER_SCALE = 0.1
"""Where the layer scale starts: with the paper's 1e-6, so few blocks learn next to nothing in a short training."""

EPS = 1e-6
"""Of every LayerNorm."""


class Block(nn.Module):
    """x + s * narrow(gelu(widen(LN(depthwise(x)))))."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width)
        self.norm = nn.LayerNorm(width, EPS)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), LAYER_SCALE))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, of the shape of x[B, h, w, channels]."""
        y: Tensor = self.narrow(F.gelu(self.widen(self.norm(convolve(self.depthwise, x)))))
        return x + self.scale * y


class Stage(nn.Module):
    """LayerNorm and a 2x2 convolution that halves the image, except in the first stage; then blocks."""

    def __init__(self, inputs: int, width: int, depth: int, kernel: int) -> None:
        super().__init__()
        self.shrink = nn.Conv2d(inputs, width, 2, 2) if inputs != width else None
        self.norm = nn.LayerNorm(inputs, EPS) if inputs != width else nn.Identity()
        self.blocks = nn.Sequential(*(Block(width, kernel) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the stage's output for x[B, h, w, inputs]."""
        x = x if self.shrink is None else convolve(self.shrink, self.norm(x))
        out: Tensor = self.blocks(x)
        return out


class ConvNeXt(nn.Module):
    """A stem, stages of blocks, the average over positions, LayerNorm, and a linear head.

    It reads images of any size from 16 pixels on, and normalises them inside.
    """

    def __init__(
        self,
        classes: int = 10,
        widths: Sequence[int] = (40, 80, 160, 320),
        depths: Sequence[int] = (2, 2, 6, 2),
        kernel: int = 5,
        mean: Sequence[float] = CIFAR10_MEAN,
        std: Sequence[float] = CIFAR10_STD,
    ) -> None:
        super().__init__()
        self.smallest = 2 ** len(widths)
        self.normalise = Normalise(mean, std)
        self.stem = nn.Conv2d(3, widths[0], 2, 2)
        self.stem_norm = nn.LayerNorm(widths[0], EPS)
        plans = zip((widths[0], *widths[:-1]), widths, depths, strict=True)
        self.stages = nn.Sequential(*(Stage(*plan, kernel) for plan in plans))
        self.norm = nn.LayerNorm(widths[-1], EPS)
        self.last_stage = (f"stages.{len(widths) - 1}.", "norm.")
        self.head = nn.Linear(widths[-1], classes)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [B, classes] of images [B, 3, H, W]."""
        height, width = x.shape[-2:]
        if min(height, width) < self.smallest:
            raise UserError(
                f"convnext cannot read images of {height} x {width}: enlarge them to {self.smallest} or more"
            )
        y = self.stages(self.stem_norm(convolve(self.stem, self.normalise(x).movedim(1, -1))))
        logits: Tensor = self.head(self.norm(y.mean((1, 2))))
        return logits
