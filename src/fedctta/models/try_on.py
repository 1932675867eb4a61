"""Whether a model takes the images it will be given, and answers with classes: asked once, before it adapts."""

from __future__ import annotations

import torch
from torch import Tensor

from fedctta.core.network import Network
from fedctta.core.outputs import Inputs, as_arguments
from fedctta.errors import UserError

OF_MODELS = (RuntimeError, ValueError, TypeError, IndexError)
"""The errors with which modules refuse what they are given."""


def try_on(network: Network, x: Inputs, remedy: str = "choose one that fits") -> Tensor:
    """Return the source model's logits for a batch; refuse what it cannot take."""
    try:
        with torch.no_grad():
            return network.rehearse(x).logits
    except OF_MODELS as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"the model cannot take {describe(x)}: {reason}; {remedy}") from error


def describe(x: Inputs) -> str:
    """Say of what shape one image, or one row of other data, is.

    >>> describe(torch.zeros(4, 3, 8, 9)), describe({"ids": torch.zeros(4, 7), "age": torch.zeros(4)})
    ('images of 3x8x9', 'ids of 7 and age of 1')
    """
    arguments, keywords = as_arguments(x)
    named = {f"tensor {number}": tensor for number, tensor in enumerate(arguments, 1)} | keywords
    if isinstance(x, Tensor):
        named = {"images": x}
    return " and ".join(f"{name} of {'x'.join(map(str, t.shape[1:])) or '1'}" for name, t in named.items())


def refuse_regression(logits: Tensor) -> None:
    """Refuse a model that gives one number per image."""
    if logits.ndim == 1 or (logits.ndim == 2 and logits.shape[1] == 1):
        raise UserError(
            "the model gives one number per image, as for regression: give a logit per class, two for yes or no"
        )
