"""What a client method needs of a model, and the line that says so when a model lacks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from fedctta.core.network import Network
from fedctta.errors import either

Need = Literal["images", "batchnorm", "affine", "features", "gradients"]

MET: Mapping[Need, Callable[[Network], bool]] = {
    "images": lambda network: not network.dense,
    "batchnorm": lambda network: bool(network.norms),
    "affine": lambda network: bool(network.affine),
    "features": lambda network: network.has_features,
    "gradients": lambda network: network.differentiable,
}
"""Whether a model has it: one prediction an image, whose pixels views may move; BatchNorm layers; scales and shifts of
normalisation layers; features, which a linear layer turns into logits; gradients, as far as is known."""

_LACK: Mapping[Need, str] = {
    "images": "works on whole images and this model predicts every pixel",
    "batchnorm": "needs BatchNorm layers and this model has none",
    "affine": "trains scales of normalisation layers and this model has none",
    "features": "needs a model that ends in nn.Linear",
    "gradients": "takes steps along gradients and this model gives its weights none (it may have quantised layers,"
    " torch.no_grad(), gradient checkpoints, NumPy, or an autograd.Function without setup_context)",
}


def meets(network: Network, needs: Iterable[Need]) -> bool:
    """Whether a model has all that a method needs.

    >>> from torch import nn
    >>> meets(Network(nn.Linear(2, 2)), ["images", "features"]), meets(Network(nn.Linear(2, 2)), ["batchnorm"])
    (True, False)
    """
    return all(MET[need](network) for need in needs)


def refusal(method: str, need: Need, remedies: Iterable[str], usable: Iterable[str]) -> str:
    """Say what a method lacks, and what to use: remedies of its own, or one of the methods that can.

    >>> refusal("memo", "images", [], ["none", "bn", "tent"])
    "adapter 'memo' works on whole images and this model predicts every pixel: use adapter none, bn or tent"
    """
    return f"adapter {method!r} {_LACK[need]}: use {' or '.join([*remedies, f'adapter {either(usable)}'])}"
