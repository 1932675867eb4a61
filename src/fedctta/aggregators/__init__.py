"""What the server does with all uploads. One method a file, its paper's equations as pure functions.

Nearly every method is a row-stochastic collaboration matrix W: client i receives sum_j W_ij theta_j. An aggregator
computes W; the engine mixes. It is a frozen dataclass whose fields are its parameters, and what it must remember
between rounds is a dictionary of tensors that it is handed and gives back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedctta.clients import Client, Lifter
from fedctta.network import Network, Tensors
from fedctta.registry import Registry


class Uploads(NamedTuple):
    """What the server holds in one round, stacked over the N clients.

    `own` are the clients' models, `signals` the small extras the aggregator asked for. Rows of clients that are not
    `active` are their last ones. `domain` is filled only for an upper bound (see `Aggregator.upper_bound`).
    """

    own: Tensors
    signals: Tensors
    active: Tensor
    domain: Tensor | None = None


@dataclass(frozen=True)
class Server:
    """What an aggregator may use besides uploads: the model's function, the lifting, a seed, public images."""

    network: Network
    lift: Lifter
    seed: int
    shape: tuple[int, ...]
    clients: int
    images: Callable[[int], Tensor]


class Aggregator:
    """A server method: which signals it asks for, and how uploads become a collaboration matrix."""

    name: ClassVar[str]
    communicates: ClassVar[bool] = True  # False: nothing is sent, W is the identity
    upper_bound: ClassVar[bool] = False  # True: is told the true domains; a yardstick, not a method

    def init(self, server: Server) -> Tensors:
        """Return the memory before the first round."""
        return {}

    def signal(self, network: Network, client: Client, x: Tensor) -> Tensors:
        """Return what one client computes for the server beside its model. Pure; no labels."""
        return {}

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Tensor, Tensors]:
        """Return W[N, N] and the new memory. The engine takes absent clients out of W."""
        raise TypeError(f"{type(self).__name__} must define collaborate")


def mix(weights: Tensor, own: Tensors) -> Tensors:
    """Give client i the model sum_j W_ij theta_j."""
    return {name: (weights @ tensor.reshape(len(weights), -1)).view_as(tensor) for name, tensor in own.items()}


def restrict(weights: Tensor, active: Tensor) -> Tensor:
    """Take absent clients out of W: no weight on them, rows renormalised, their own rows the identity.

    For a softmax this equals the softmax over those present. A row left without weight falls back to itself.
    """
    present = weights * active
    total = present.sum(1, keepdim=True)
    alone = (~active | (total.squeeze(1) <= 0)).unsqueeze(1)
    return torch.where(alone, torch.eye(len(weights), device=weights.device), present / total.clamp_min(1e-12))


aggregators: Registry[Aggregator] = Registry("aggregator", __name__)
