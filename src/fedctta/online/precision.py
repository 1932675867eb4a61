"""In which precision a client computes: in that of its model.

What a method keeps is float32, or float64 for a model in float64. Numbers of 16 bits are too coarse for most methods,
whose small steps would be rounded away: all refuse a model in 16 bits but those that say otherwise (`Adapter.short`),
and these keep what they measure in float32. Nothing is rounded away where what a method adapts has more bits, as
normalisation layers between convolutions in 16.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from fedctta.adapters import Adapter, adapters
from fedctta.adapters.common.needs import meets
from fedctta.core.clients import Client
from fedctta.core.moments import SHORT
from fedctta.core.network import Network
from fedctta.errors import UserError, either


def check_precision(network: Network, adapter: Adapter) -> None:
    """Refuse a model in 16 bits, unless the method, which fits the model otherwise, works on it.

    >>> from torch import nn
    >>> check_precision(Network(nn.LayerNorm(2).double()), adapters.create("tent"))
    >>> check_precision(Network(nn.Linear(2, 2).half()), adapters.create("none"))
    """
    if network.dtype in SHORT and not adapter.short and not _adapts_long(network, adapter):
        able = either(name for name, cls in adapters.classes().items() if cls.short and meets(network, cls.needs))
        raise UserError(
            f"adapter {adapter.name!r} needs a model in float32 or float64 and this one is in"
            f" {str(network.dtype).removeprefix('torch.')}: call .float() on it, or use adapter {able}"
        )


def _adapts_long(network: Network, adapter: Adapter) -> bool:
    """Whether the method adapts tensors of the model, and all of them have more than 16 bits."""
    own = adapter.init(network).own
    return bool(own) and not any(tensor.dtype in SHORT for tensor in own.values())


def match_precision(network: Network, client: Client) -> Client:
    """Return the client with its real numbers in float32 at least, and in float64 if the model is."""
    least = torch.promote_types(network.dtype, torch.float32)

    def match(tensor: Tensor) -> Tensor:
        return tensor.to(torch.promote_types(tensor.dtype, least)) if tensor.is_floating_point() else tensor

    matched: Client = tree_map_only(Tensor, match, client)
    return matched
