"""ResNet-8 and ResNet-18 for 32x32 images (post-activation residual networks)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedctta.models.inputs import Normalise

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2470, 0.2435, 0.2616)


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """Make a 'same' convolution without bias, drawn from N(0, 2 / (kernel^2 * outputs))."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def projection(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Make a skip path: the identity where shapes agree, else 1x1 convolution and BatchNorm."""
    if inputs == outputs and stride == 1:
        return nn.Identity()
    return nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """relu(skip(x) + BN(conv3x3(relu(BN(conv3x3(x))))))."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(inputs, outputs, 3, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = conv(outputs, outputs, 3)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.skip = projection(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.skip(x) + self.bn2(self.conv2(y)))


class ResNet(nn.Module):
    """A stem, stages of basic blocks, the average over positions, and a linear head.

    Stage k has `depth` blocks of `widths[k]` channels and halves the image, except for the first.
    """

    def __init__(self, stem: nn.Module, widths: Sequence[int], depth: int, classes: int) -> None:
        super().__init__()
        self.stem = stem
        blocks: list[nn.Module] = []
        inputs = widths[0]
        for k, width in enumerate(widths):
            for i in range(depth):
                blocks.append(BasicBlock(inputs, width, stride=2 if k > 0 and i == 0 else 1))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.last_stage = tuple(f"blocks.{k}." for k in range(len(blocks))[-depth:])
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [B, classes] of images [B, 3, H, W]."""
        logits: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return logits


def resnet8(classes: int = 10, width: int = 64) -> ResNet:
    """Build ResNet-8: 7x7 stride-2 stem and max-pool (32 -> 8), then one block of 1, 2 and 4 times `width`.

    It reads raw [0, 1] images.
    """
    stem = nn.Sequential(
        conv(3, width, 7, stride=2), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)
    )
    return ResNet(stem, [width, 2 * width, 4 * width], depth=1, classes=classes)


def resnet18(classes: int = 10, mean: Sequence[float] = CIFAR10_MEAN, std: Sequence[float] = CIFAR10_STD) -> ResNet:
    """Build ResNet-18 with the CIFAR stem (3x3, stride 1, no pooling); images are normalised inside."""
    stem = nn.Sequential(Normalise(mean, std), conv(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU())
    return ResNet(stem, [64, 128, 256, 512], depth=2, classes=classes)
