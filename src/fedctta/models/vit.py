"""A small vision transformer (Dosovitskiy et al., ICLR 2021) for small images: LayerNorm only.

    z <- patches(x) + positions;   z <- z + attention(LN(z));   z <- z + mlp(LN(z));   logits = head(mean(LN(z)))

It is the paper's hybrid: a few convolutions of stride 2 make the patches, as one matrix learns little from little data
(Xiao et al., "Early convolutions help transformers see better", NeurIPS 2021). The mean over patches takes the place of
a class token. Inside, an image is [B, h, w, channels].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedctta.models.inputs import Normalise
from fedctta.models.resnet import CIFAR10_MEAN, CIFAR10_STD
from fedctta.models.segformer import Attention, enlarge

NARROWEST = 8
"""The least channels of a convolution that makes patches."""


class Block(nn.Module):
    """z + attention(LN(z)), and then z + mlp(LN(z))."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, reduction=1)
        self.norm2 = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, z: Tensor) -> Tensor:
        """Return the block's output, of the shape of z[B, h, w, channels]."""
        z = z + self.attention(self.norm1(z))
        y: Tensor = self.narrow(F.gelu(self.widen(self.norm2(z))))
        return z + y


class ViT(nn.Module):
    """Patches with learnt positions, `depth` blocks, the mean over patches, and a linear head.

    `side` is the size of the images it is made for. They are cut into about `grid` x `grid` patches, whose width is a
    power of two: for a grid of 8, 4 pixels of 32 and 8 of 64. Images of other sizes have more or fewer patches, and
    their positions are interpolated. Input is normalised inside.
    """

    def __init__(
        self,
        classes: int = 10,
        width: int = 192,
        depth: int = 6,
        heads: int = 3,
        grid: int = 8,
        side: int = 32,
        mean: Sequence[float] = CIFAR10_MEAN,
        std: Sequence[float] = CIFAR10_STD,
    ) -> None:
        super().__init__()
        self.normalise = Normalise(mean, std)
        self.patches = make_patches(width, max(1, round(math.log2(side / grid))))
        self.positions = nn.Parameter(0.02 * torch.randn(grid, grid, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.last_stage = (*(f"blocks.{k}." for k in range(depth)[-max(1, depth // 4) :]), "norm.")
        self.head = nn.Linear(width, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def fit(self, tensors: Mapping[str, Tensor]) -> None:
        """Make patches of the size that trained weights are for; `zoo.load_weights` asks for it."""
        halvings = sum(name.startswith("patches.") and name.endswith(".weight") for name in tensors)
        if halvings and halvings != count_halvings(self.patches):
            self.patches = make_patches(self.positions.shape[-1], halvings).to(self.positions.device)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [B, classes] of images [B, 3, H, W]."""
        z = self.patches(self.normalise(x)).movedim(1, -1)
        rows, columns = z.shape[1:3]
        positions: Tensor = self.positions
        if (rows, columns) != positions.shape[:2]:
            positions = enlarge(positions[None], rows, columns)[0]
        logits: Tensor = self.head(self.norm(self.blocks(z + positions)).mean((1, 2)))
        return logits


def make_patches(width: int, halvings: int) -> nn.Sequential:
    """Make `halvings` 3x3 convolutions of stride 2, each twice as wide as the one before, the last `width` wide."""
    widths = [max(NARROWEST, width // 2**k) for k in reversed(range(halvings))]
    layers: list[nn.Module] = []
    for inputs, outputs in zip((3, *widths[:-1]), widths, strict=True):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.GELU()]
    return nn.Sequential(*layers[:-1])


def count_halvings(patches: nn.Sequential) -> int:
    """Return how many convolutions make the patches."""
    return sum(isinstance(layer, nn.Conv2d) for layer in patches)
