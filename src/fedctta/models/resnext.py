"""ResNeXt-29 4x32d: bottleneck blocks whose 3x3 convolution works in four groups."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedctta.models.inputs import Normalise
from fedctta.models.resnet import conv, projection

GROUPS = 4
BASE_WIDTH = 32


class Bottleneck(nn.Module):
    """relu(skip(x) + y), where y is 1x1 to d, 3x3 in four groups, 1x1 to 4 * planes, each with BatchNorm.

    The inner width is d = 4 * floor(planes * 32 / 64).
    """

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        width = GROUPS * (planes * BASE_WIDTH // 64)
        outputs = 4 * planes
        self.reduce = conv(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.grouped = conv(width, width, 3, stride, groups=GROUPS)
        self.bn2 = nn.BatchNorm2d(width)
        self.expand = conv(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.skip = projection(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        y = torch.relu(self.bn1(self.reduce(x)))
        y = torch.relu(self.bn2(self.grouped(y)))
        return torch.relu(self.skip(x) + self.bn3(self.expand(y)))


class ResNeXt29(nn.Module):
    """A 3x3 stem, three stages of three bottlenecks (planes 64, 128, 256), average, linear head.

    `normalise=True` maps [0, 1] images to [-1, 1] inside, as the public AugMix weights expect. The FedTSA and
    FedCTTA papers ran those weights without it; `normalise=False` repeats that, as the model `resnext29-raw`.
    """

    def __init__(self, classes: int = 10, normalise: bool = True) -> None:
        super().__init__()
        self.normalise = Normalise([0.5] * 3, [0.5] * 3) if normalise else nn.Identity()
        self.stem = nn.Sequential(conv(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU())
        blocks: list[nn.Module] = []
        inputs = 64
        for planes, stride in ((64, 1), (128, 2), (256, 2)):
            for i in range(3):
                blocks.append(Bottleneck(inputs, planes, stride if i == 0 else 1))
                inputs = 4 * planes
        self.blocks = nn.Sequential(*blocks)
        self.last_stage = tuple(f"blocks.{k}." for k in range(len(blocks))[-3:])
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [B, classes] of images [B, 3, H, W] in [0, 1]."""
        logits: Tensor = self.head(self.blocks(self.stem(self.normalise(x))).mean((2, 3)))
        return logits
