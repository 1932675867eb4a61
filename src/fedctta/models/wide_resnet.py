"""Wide residual networks WRN-28-10 and WRN-40-2 (pre-activation)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedctta.models.inputs import Normalise
from fedctta.models.resnet import conv


class PreActivationBlock(nn.Module):
    """With a = relu(BN(x)): skip + conv3x3(relu(BN(conv3x3(a)))).

    The skip is x itself, or a 1x1 convolution of the *activated* input `a` where the width changes.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv(inputs, outputs, 3, stride)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = conv(outputs, outputs, 3)
        self.skip = conv(inputs, outputs, 1, stride) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        activated = torch.relu(self.bn1(x))
        skip = x if self.skip is None else self.skip(activated)
        y: Tensor = self.conv2(torch.relu(self.bn2(self.conv1(activated))))
        return skip + y


class WideResNet(nn.Module):
    """A 3x3 stem of 16 channels, three groups of (depth - 4) / 6 blocks, BN-ReLU, average, linear head.

    The groups have 16, 32 and 64 times `widen` channels and strides 1, 2 and 2.
    """

    def __init__(self, depth: int, widen: int, classes: int, normalise: bool) -> None:
        super().__init__()
        self.normalise = Normalise([0.5] * 3, [0.5] * 3) if normalise else nn.Identity()
        self.stem = conv(3, 16, 3)
        blocks: list[nn.Module] = []
        inputs = 16
        for width, stride in ((16 * widen, 1), (32 * widen, 2), (64 * widen, 2)):
            for i in range((depth - 4) // 6):
                blocks.append(PreActivationBlock(inputs, width, stride if i == 0 else 1))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(inputs)
        self.last_stage = (*(f"blocks.{k}." for k in range(len(blocks))[-(len(blocks) // 3) :]), "bn.")
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [B, classes] of images [B, 3, H, W] in [0, 1]."""
        y = self.blocks(self.stem(self.normalise(x)))
        logits: Tensor = self.head(torch.relu(self.bn(y)).mean((2, 3)))
        return logits


def wrn_28_10(classes: int = 10, normalise: bool = False) -> WideResNet:
    """Build WRN-28-10, which reads raw [0, 1] images as RobustBench's "Standard" network does."""
    return WideResNet(28, 10, classes, normalise)


def wrn_40_2(classes: int = 10, normalise: bool = True) -> WideResNet:
    """Build WRN-40-2, which maps images to [-1, 1] inside as AugMix does."""
    return WideResNet(40, 2, classes, normalise)
