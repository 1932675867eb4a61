"""The networks of the papers, by name.

Every network is a plain torch module from float images [B, 3, H, W] in [0, 1] (see `inputs.to_input`) to
logits [B, classes]; its last `nn.Linear` is the classifier, so the input of that layer is the feature vector.
`last_stage` holds how the names of its last stage's tensors begin, for methods that leave that stage alone.
A dense network gives logits [B, classes, H, W], and its classifier reads a feature vector for every pixel,
[B, H, W, features].
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from fedctta.errors import UserError, unknown
from fedctta.models.conv1d import Conv1d
from fedctta.models.convnext import ConvNeXt
from fedctta.models.efficientnet import EfficientNetLite0
from fedctta.models.inputs import to_input
from fedctta.models.resnet import resnet8, resnet18
from fedctta.models.resnext import ResNeXt29
from fedctta.models.segformer import SegFormer
from fedctta.models.unet import UNet
from fedctta.models.vit import ViT
from fedctta.models.wide_resnet import wrn_28_10, wrn_40_2

__all__ = ["ARCHITECTURES", "Architecture", "build", "model_for", "to_input"]


@dataclass(frozen=True)
class Architecture:
    """One network: what it is, its number of parameters for ten classes, and the function that makes it.

    `weights_of` names the model whose trained weights it takes, where these are not its own. `dense` says whether it
    gives logits for every pixel, `series` whether it reads series [B, channels, time] in place of images.
    """

    description: str
    parameters: int
    make: Callable[..., nn.Module]
    weights_of: str | None = None
    dense: bool = False
    series: bool = False


ARCHITECTURES = {
    "resnet8": Architecture("ResNet-8 of FedTSA and FedCTTA, raw input", 1_235_274, resnet8),
    "resnet8-w16": Architecture(
        "ResNet-8 a quarter as wide, for the embedded data", 79_962, partial(resnet8, width=16)
    ),
    "resnet18": Architecture("ResNet-18 with the CIFAR stem, input normalised inside", 11_173_962, resnet18),
    "wrn-28-10": Architecture("WRN-28-10, RobustBench's standard network, raw input", 36_479_194, wrn_28_10),
    "wrn-40-2": Architecture("WRN-40-2 of AugMix, input normalised inside", 2_243_546, wrn_40_2),
    "resnext29": Architecture("ResNeXt-29 4x32d of AugMix, input normalised inside", 6_807_882, ResNeXt29),
    "resnext29-raw": Architecture(
        "ResNeXt-29 with its weights but raw input, as FedTSA and FedCTTA ran it",
        6_807_882,
        partial(ResNeXt29, normalise=False),
        weights_of="resnext29",
    ),
    "efficientnet-lite0": Architecture(
        "EfficientNet-Lite0, which starts from ImageNet, input normalised inside", 3_383_818, EfficientNetLite0
    ),
    "vit-tiny": Architecture("small vision transformer with LayerNorm only, input normalised inside", 2_852_554, ViT),
    "vit-w48": Architecture(
        "vision transformer a quarter as wide, with four blocks, for the embedded data",
        127_810,
        partial(ViT, width=48, depth=4, grid=4),
    ),
    "convnext-atto": Architecture(
        "ConvNeXt-Atto for small images, with LayerNorm only, input normalised inside", 3_332_130, ConvNeXt
    ),
    "conv1d": Architecture(
        "three 1-d convolutions with BatchNorm, for series of six channels", 33_430, Conv1d, series=True
    ),
    "unet": Architecture("small U-Net with BatchNorm, for every pixel, raw input", 118_746, UNet, dense=True),
    "segformer": Architecture(
        "small SegFormer with LayerNorm only, for every pixel, raw input", 243_082, SegFormer, dense=True
    ),
}

USUAL = {"cifar10": "resnet8", "cifar100": "resnext29", "shapes": "resnet8-w16"}
USUAL |= {"tiny-imagenet": "resnet18", "pacs": "efficientnet-lite0", "office-caltech": "efficientnet-lite0"}
USUAL |= {"watch": "conv1d"}
"""The models that are meant by "auto"; for other data it is ResNet-8, and the U-Net where every pixel has a class."""


def model_for(dataset: str, model: str = "auto", dense: bool = False) -> str:
    """Return `model`, or in place of "auto" the usual one for a data set, be it clean or corrupted.

    >>> model_for("cifar100-c"), model_for("shapes"), model_for("mine", dense=True), model_for("shapes", "resnet18")
    ('resnext29', 'resnet8-w16', 'unet', 'resnet18')
    """
    if model != "auto":
        return model
    return "unet" if dense else USUAL.get(dataset.removesuffix("-c"), "resnet8")


def size_option(name: str, side: int) -> dict[str, int]:
    """Return the option that makes the network `name` for images of `side` pixels, if it is made for a size.

    >>> size_option("vit-tiny", 64), size_option("resnet8", 64)
    ({'side': 64}, {})
    """
    known = inspect.signature(ARCHITECTURES[name].make).parameters if name in ARCHITECTURES else {}
    return {"side": side} if "side" in known else {}


def build(name: str, classes: int = 10, *, seed: int = 0, **options: Any) -> nn.Module:
    """Make the network `name` with fresh weights; the same seed gives the same weights.

    `options` are the architecture's own, such as `normalise=False` for resnext29. The global random state is
    left as it was.
    """
    if name not in ARCHITECTURES:
        raise unknown("model", name, ARCHITECTURES)
    make = ARCHITECTURES[name].make
    known = [option for option in inspect.signature(make).parameters if option != "classes"]
    for option in options:
        if option not in known:
            raise unknown(f"option of {name}", option, known)
    if classes < 2:
        raise UserError(f"a classifier needs at least 2 classes, not {classes}: set classes to 2 or more")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return make(classes=classes, **options)
