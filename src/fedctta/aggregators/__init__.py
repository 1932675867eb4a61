"""What the server does with all uploads. One method a file, its paper's equations as pure functions.

Nearly every method is a row-stochastic collaboration matrix W: client i receives sum_j W_ij theta_j. An aggregator
computes W (one for the model, or one for each of its tensors); the engine mixes, and the aggregator may take one more
step on the result. It is a frozen dataclass whose fields are its parameters, and what it must remember between rounds
is a dictionary of tensors that it is handed and gives back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedctta.aggregators.neighbours import Neighbours
from fedctta.clients import Client, Lifter
from fedctta.network import Network, Tensors
from fedctta.registry import Registry

# W[N, N] of the whole model, the same with few weights a row, or one W for each of the model's tensors by name
Mixing = Tensor | Neighbours | Tensors


class Uploads(NamedTuple):
    """What the server holds in one round, stacked over the N clients.

    `own` are the clients' models as far as they are shared, `signals` the small extras the aggregator asked for. Rows
    of clients that are not `active` are their last ones. `domain` is filled only for an upper bound (see
    `Aggregator.upper_bound`). `trust` says what an upload counts: 1 if it is of this round, less the older it is, 0 if
    there is none; the engine weights W by it, so that only a method with a scale of its own has to look.
    """

    own: Tensors
    signals: Tensors
    active: Tensor
    domain: Tensor | None = None
    trust: Tensor | None = None  # None: 1 for all that are active


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

    def welcome(self, own: Tensors, joined: Tensor, memory: Tensors) -> Tensors:
        """Return all clients' shared tensors before a round in which `joined`[N] came in; by default they keep theirs.

        A server that keeps a model of its own hands it out here. Rows of all others must stay.
        """
        return own

    def keeps(self, memory: Tensors) -> Tensors:
        """Return the model the server keeps of its own, if it does."""
        return {}

    def foresee(self, server: Server, read: Callable[[int], Tensor], rounds: Sequence[int]) -> Tensors:
        """Return memories for what can be worked out beforehand, given all that clients will see in a simulation.

        `rounds` are those that end with an aggregation, in all of which everybody takes part; `read`(t) gives the
        batches x[N, B, ...] of round t. Only what does not depend on adaptation can be foreseen, and only to do at
        once what would give the same round by round.
        """
        return {}

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
    if isinstance(weights, Neighbours):
        return {name: weights.mixed(tensor) for name, tensor in own.items()}

    def mixed(name: str, tensor: Tensor) -> Tensor:
        w = weights[name] if isinstance(weights, dict) else weights
        if not row_by_row(tensor):
            return (w @ tensor.reshape(len(w), -1)).view_as(tensor)
        # Rows as they lie in memory, so that neither they nor the result have to be put in order.
        flat = tensor.as_strided((len(w), tensor[0].numel()), (tensor.stride(0), 1))
        return (w @ flat).as_strided(tensor.shape, tensor.stride())

    return {name: mixed(name, tensor) for name, tensor in own.items()}


def row_by_row(tensor: Tensor) -> bool:
    """Whether rows lie one after another in memory, each without gaps, whatever the order within."""
    if tensor.dim() < 2 or not tensor.numel():
        return False
    room = 1
    for stride, size in sorted(zip(tensor.stride()[1:], tensor.shape[1:], strict=True)):
        if size > 1 and stride != room:
            return False
        room *= size
    return tensor.stride(0) == room


def overall(weights: Mixing, own: Tensors) -> Tensor:
    """Return one W for the whole model: the mean of those of its tensors, each counted by its size.

    With few weights a row it is a sparse tensor.
    """
    if isinstance(weights, Neighbours):
        return weights.matrix()
    if isinstance(weights, Tensor):
        return weights
    sizes = {name: own[name][0].numel() for name in weights}
    return torch.stack([w * (sizes[name] / sum(sizes.values())) for name, w in weights.items()]).sum(0)


def restrict(weights: Mixing, receive: Tensor, trust: Tensor | None = None) -> Mixing:
    """Weight the columns of W by `trust`[N], renormalise its rows, and let those who do not `receive` keep their model.

    Without trust, those who receive are those who sent. For a softmax over W this then equals the softmax over those
    present. A row left without weight falls back to itself.
    """
    trust = receive if trust is None else trust
    if isinstance(weights, Neighbours):
        return weights.restricted(receive, trust)
    if isinstance(weights, dict):
        return {name: _restrict(w, receive, trust) for name, w in weights.items()}
    return _restrict(weights, receive, trust)


def _restrict(weights: Tensor, receive: Tensor, trust: Tensor) -> Tensor:
    present = weights * trust
    total = present.sum(1, keepdim=True)
    alone = (~receive | (total.squeeze(1) <= 0)).unsqueeze(1)
    return torch.where(alone, torch.eye(len(weights), device=weights.device), present / total.clamp_min(1e-12))


aggregators: Registry[Aggregator] = Registry("aggregator", __name__)
