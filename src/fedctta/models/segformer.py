"""A small SegFormer-like transformer: logits for every pixel, LayerNorm only.

After Xie et al., "SegFormer", NeurIPS 2021: patches that overlap, attention over a shrunken image, a depthwise
convolution in place of position codes, and a decoder of linear layers. Here it is small, and starts at half the
image's size rather than a quarter, as suits small images. Inside, an image is [B, h, w, channels].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedctta.errors import UserError

SMALLEST = 16
"""The shortest side an image may have."""

STAGES = ((32, 5, 1, 4), (64, 3, 2, 2), (96, 3, 4, 1))
"""Channels, patch size, attention heads and shrinking of each stage."""


def convolve(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """Apply a convolution to [B, h, w, channels]."""
    out: Tensor = layer(x.movedim(-1, 1))
    return out.movedim(1, -1)


def enlarge(x: Tensor, height: int, width: int) -> Tensor:
    """Resize [B, h, w, channels] bilinearly, as two matrix products.

    Unlike `F.interpolate`, this has a gradient that repeats to the last bit on CUDA.
    """
    rows, columns = (_stretch(old, new, x) for old, new in zip(x.shape[1:3], (height, width), strict=True))
    return torch.einsum("Yy,byxc->bYxc", rows, torch.einsum("Xx,byxc->byXc", columns, x))


def _stretch(old: int, new: int, like: Tensor) -> Tensor:
    """Return the [new, old] weights of linear interpolation between the centres of pixels."""
    where = (torch.arange(new, device=like.device, dtype=like.dtype) + 0.5) * (old / new) - 0.5
    points = torch.arange(old, device=like.device, dtype=like.dtype)
    return (1 - (where.clamp(0, old - 1)[:, None] - points).abs()).clamp(min=0)


class Attention(nn.Module):
    """Every pixel asks; the pixels of the image shrunk `reduction` times answer.

    softmax(Q K' / sqrt(d)) V with Q of the image and K, V of LN(conv(image)), `heads` times side by side.
    """

    def __init__(self, width: int, heads: int, reduction: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.shrink = nn.Conv2d(width, width, reduction, reduction) if reduction > 1 else None
        self.norm = nn.LayerNorm(width) if reduction > 1 else nn.Identity()

    def _split(self, x: Tensor) -> Tensor:
        """Turn [B, h, w, channels] into [B, heads, h w, channels / heads]."""
        size, height, width, channels = x.shape
        return x.reshape(size, height * width, self.heads, channels // self.heads).movedim(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return what every pixel of x[B, h, w, channels] gathers."""
        small = self.norm(x if self.shrink is None else convolve(self.shrink, x))
        query, key, value = self._split(self.query(x)), self._split(self.key(small)), self._split(self.value(small))
        weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
        gathered: Tensor = self.out((weights @ value).movedim(1, 2).reshape(x.shape))
        return gathered


class Block(nn.Module):
    """x + attention(LN(x)), and then x + mlp(LN(x)), whose depthwise convolution tells pixels where they are."""

    def __init__(self, width: int, heads: int, reduction: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, reduction)
        self.norm2 = nn.LayerNorm(width)
        self.widen = nn.Linear(width, growth * width)
        self.place = nn.Conv2d(growth * width, growth * width, 3, padding=1, groups=growth * width)
        self.narrow = nn.Linear(growth * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, of the shape of x[B, h, w, channels]."""
        x = x + self.attention(self.norm1(x))
        y: Tensor = self.narrow(F.gelu(convolve(self.place, self.widen(self.norm2(x)))))
        return x + y


class Stage(nn.Module):
    """Halve the image with overlapping patches; then blocks, and a last LayerNorm."""

    def __init__(self, inputs: int, width: int, kernel: int, heads: int, reduction: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(inputs, width, kernel, 2, kernel // 2)
        self.norm1 = nn.LayerNorm(width)
        self.blocks = nn.Sequential(*(Block(width, heads, reduction, growth=2) for _ in range(depth)))
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the stage's output [B, h / 2, w / 2, width] for x[B, h, w, inputs]."""
        out: Tensor = self.norm2(self.blocks(self.norm1(convolve(self.patches, x))))
        return out


class SegFormer(nn.Module):
    """`STAGES` of `depth` blocks at 1/2, 1/4 and 1/8 of the image, and a decoder that adds them up at 1/2.

    It reads raw [0, 1] images of any size from 16 pixels a side. The head is a linear layer over each pixel's channels,
    so its input holds the features [B, H, W, decoder] of every pixel. (Enlarging and the head commute.)
    """

    def __init__(self, classes: int = 10, decoder: int = 48, depth: int = 1) -> None:
        super().__init__()
        widths = [stage[0] for stage in STAGES]
        plans = zip((3, *widths[:-1]), STAGES, strict=True)
        self.stages = nn.ModuleList(Stage(inputs, *plan, depth) for inputs, plan in plans)
        self.gather = nn.ModuleList(nn.Linear(width, decoder) for width in widths)
        self.norm = nn.LayerNorm(decoder)
        self.last_stage = (f"stages.{len(widths) - 1}.", "norm.")
        self.mix = nn.Linear(decoder, decoder)
        self.head = nn.Linear(decoder, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [B, classes, H, W] of images [B, 3, H, W]."""
        height, width = x.shape[-2:]
        if min(height, width) < SMALLEST:
            raise UserError(f"segformer cannot read images of {height} x {width}: enlarge them to {SMALLEST} or more")
        level, seen = x.movedim(1, -1), []
        for stage, gather in zip(self.stages, self.gather, strict=True):
            level = stage(level)
            seen.append(gather(level))
        rows, columns = seen[0].shape[1:3]
        fused = torch.stack([seen[0], *(enlarge(each, rows, columns) for each in seen[1:])]).sum(0)
        fused = F.gelu(self.mix(F.gelu(self.norm(fused))))
        logits: Tensor = self.head(enlarge(fused, height, width))
        return logits.movedim(-1, 1)
