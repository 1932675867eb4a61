"""What the server does with all uploads. One method a file, its paper's equations as pure functions.

Nearly every method is a row-stochastic collaboration matrix W: client i receives sum_j W_ij theta_j. An aggregator
computes W (one for the model, or one for each of its tensors); the engine mixes, and the aggregator may take one more
step on the result. It is a frozen dataclass whose fields are its parameters, and what it must remember between rounds
is a dictionary of tensors that it is handed and gives back.
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

Mixing = Tensor | Tensors  # W[N, N] of the whole model, or one W for each of its tensors by name


class Uploads(NamedTuple):
    """What the server holds in one round, stacked over the N clients.

    `own` are the clients' models as far as they are shared, `signals` the small extras the aggregator asked for. Rows
    of clients that are not `active` are their last ones. `domain` is filled only for an upper bound (see
    `Aggregator.upper_bound`).
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

    def check(self, network: Network, own: Tensors) -> None:
        """Raise a UserError if models of which clients own these tensors cannot be aggregated."""

    def init(self, server: Server) -> Tensors:
        """Return the memory before the first round."""
        return {}

    def shares(self, network: Network, own: Tensors) -> Tensors:
        """Return the part of the clients' models that travels; the rest stays where it is."""
        return own

    def signal(self, network: Network, client: Client, x: Tensor) -> Tensors:
        """Return what one client computes for the server beside its model. Pure; no labels."""
        return {}

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Mixing, Tensors]:
        """Return W and the new memory. The engine takes absent clients out of W."""
        raise TypeError(f"{type(self).__name__} must define collaborate")

    def step(self, mixed: Tensors, active: Tensor, memory: Tensors) -> tuple[Tensors, Tensors]:
        """Return the models to send, given the mixed ones, and the new memory. Absent clients' rows must stay."""
        return mixed, memory


def mix(weights: Mixing, own: Tensors) -> Tensors:
    """Give client i the model sum_j W_ij theta_j."""

    def mixed(name: str, tensor: Tensor) -> Tensor:
        w = weights[name] if isinstance(weights, dict) else weights
        return (w @ tensor.reshape(len(w), -1)).view_as(tensor)

    return {name: mixed(name, tensor) for name, tensor in own.items()}


def overall(weights: Mixing, own: Tensors) -> Tensor:
    """Return one W for the whole model: the mean of those of its tensors, each counted by its size."""
    if isinstance(weights, Tensor):
        return weights
    sizes = {name: own[name][0].numel() for name in weights}
    return torch.stack([w * (sizes[name] / sum(sizes.values())) for name, w in weights.items()]).sum(0)


def restrict(weights: Mixing, active: Tensor) -> Mixing:
    """Take absent clients out of W: no weight on them, rows renormalised, their own rows the identity.

    For a softmax this equals the softmax over those present. A row left without weight falls back to itself.
    """
    if isinstance(weights, dict):
        return {name: _restrict(w, active) for name, w in weights.items()}
    return _restrict(weights, active)


def _restrict(weights: Tensor, active: Tensor) -> Tensor:
    present = weights * active
    total = present.sum(1, keepdim=True)
    alone = (~active | (total.squeeze(1) <= 0)).unsqueeze(1)
    return torch.where(alone, torch.eye(len(weights), device=weights.device), present / total.clamp_min(1e-12))


aggregators: Registry[Aggregator] = Registry("aggregator", __name__)
