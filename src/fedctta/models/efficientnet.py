"""EfficientNet-Lite0 (Tan and Le 2019, the Lite version of 2020): inverted residuals, ReLU6, no squeeze-and-excite.

The tensors have the names of the published PyTorch file, so that it can be read as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional as F

from fedctta.errors import UserError
from fedctta.models.inputs import Normalise

MEAN, STD = 127 / 255, 128 / 255  # of every channel

STAGES = (
    # blocks, kernel, stride, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """Make a convolution without bias; one with a stride is to be padded before (see `pad`)."""
    around = kernel // 2 if stride == 1 else 0
    layer = nn.Conv2d(inputs, outputs, kernel, stride, around, groups=groups, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out")
    return layer


def pad(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """Pad images as TensorFlow does, for ceil(side / stride) outputs: the odd pixel comes after, not before.

    The weights were trained so. With stride 1 the layer pads by itself, on all sides alike.
    """
    step, kernel = layer.stride[0], layer.kernel_size[0]
    if step == 1:
        return x
    rows, columns = (max((math.ceil(side / step) - 1) * step + kernel - side, 0) for side in x.shape[-2:])
    around = (0, 0, columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)
    return F.pad(x.movedim(1, -1), around).movedim(-1, 1)  # channels stay last, inside vmap too


def norm(channels: int) -> nn.BatchNorm2d:
    """Make a BatchNorm with the published constant."""
    return nn.BatchNorm2d(channels, eps=1e-3)


class InvertedResidual(nn.Module):
    """x + BN(1x1(relu6(BN(depthwise(relu6(BN(1x1(x)))))))): wide inside; the sum only where shapes agree."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.residual = stride == 1 and inputs == outputs
        if expansion > 1:
            self._expand_conv, self._bn0 = conv(inputs, wide, 1), norm(wide)
        self._depthwise_conv, self._bn1 = conv(wide, wide, kernel, stride, groups=wide), norm(wide)
        self._project_conv, self._bn2 = conv(wide, outputs, 1), norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        y = F.relu6(self._bn0(self._expand_conv(x))) if hasattr(self, "_expand_conv") else x
        y = F.relu6(self._bn1(self._depthwise_conv(pad(y, self._depthwise_conv))))
        narrow: Tensor = self._bn2(self._project_conv(y))
        return x + narrow if self.residual else narrow


class EfficientNetLite0(nn.Module):
    """Stem, 16 inverted residuals, head of 1280 channels, average over positions, linear classifier.

    It reads raw [0, 1] images of any size and normalises them inside.
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.normalise = Normalise([MEAN] * 3, [STD] * 3)
        self._conv_stem, self._bn0 = conv(3, 32, 3, 2), norm(32)
        blocks: list[nn.Module] = []
        inputs = 32
        for repeats, kernel, stride, expansion, channels in STAGES:
            for k in range(repeats):
                blocks.append(InvertedResidual(inputs, channels, kernel, stride if k == 0 else 1, expansion))
                inputs = channels
        self._blocks = nn.ModuleList(blocks)
        self._conv_head, self._bn1 = conv(inputs, 1280, 1), norm(1280)
        self._fc = nn.Linear(1280, classes)
        self.last_stage = (f"_blocks.{len(blocks) - 1}.", "_conv_head.", "_bn1.")

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [B, classes] of images [B, 3, H, W]."""
        x = self._conv_stem(pad(self.normalise(x), self._conv_stem))
        x = F.relu6(self._bn0(x))
        for block in self._blocks:
            x = block(x)
        x = F.relu6(self._bn1(self._conv_head(x)))
        logits: Tensor = self._fc(x.mean((2, 3)))
        return logits


def take_features(module: nn.Module, tensors: Mapping[str, Tensor], classifier: str = "_fc.") -> None:
    """Fill all of `module` but its classifier with the tensors of one that knows other classes."""
    wanted = {name: tensor for name, tensor in module.state_dict().items() if not name.startswith(classifier)}
    for name, tensor in wanted.items():
        if name not in tensors or tensors[name].shape != tensor.shape:
            raise UserError(f"the starting weights do not fit this model ({name}): get them anew")
    module.load_state_dict({name: tensors[name] for name in wanted}, strict=False)
