"""Whether a model takes the images it will be given: asked once, before anything is adapted or written."""

from __future__ import annotations

import torch
from torch import Tensor

from fedctta.core.network import Network
from fedctta.errors import UserError


def try_on(network: Network, x: Tensor) -> Tensor:
    """Return the source model's logits for images x[B, ...]; refuse images that it cannot take."""
    try:
        with torch.no_grad():
            return network({}, x).logits
    except (RuntimeError, ValueError) as error:
        size, reason = "x".join(map(str, x.shape[1:])), str(error).splitlines()[0]
        raise UserError(f"the model cannot take images of {size}: {reason}; choose one that fits") from error
