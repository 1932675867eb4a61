"""Tent: minimise the entropy of predictions by the scales and shifts of normalisation layers.

    min over gamma, beta of (1/B) sum_b H(p_b),    H(p) = - sum_k p_k log p_k

One step of Adam a batch. BatchNorm layers normalise with the batch's own statistics, now and when predicting; layers of
other kinds (GroupNorm, LayerNorm) work as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedctta.adapters import Adapter, usable
from fedctta.adapters.common.losses import entropy
from fedctta.adapters.common.needs import Need
from fedctta.adapters.common.optimisers import adam, adam_memory
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.core.norms import NormRule, refreshed
from fedctta.core.tensors import only
from fedctta.errors import UserError, either
from fedctta.ranges import NotNegative


class Slope(NamedTuple):
    """Where a method wants to go from the weights that it was asked about.

    `notes` are those after the batch. `some` says whether there is a step to take, `collapsed` whether to start over
    from the source after it; None: never. `statistics` are the BatchNorm statistics that the pass kept.
    """

    gradient: Tensors
    notes: Tensors
    some: Tensor
    collapsed: Tensor | None
    statistics: Tensors


class AffineAdapter(Adapter):
    """What adapters share that own the scales and shifts of normalisation layers and use batch statistics."""

    needs: ClassVar[tuple[Need, ...]] = ("affine", "gradients")
    single_images: ClassVar[bool] = False

    def init(self, network: Network) -> Client:
        """Own scales and shifts; the optimiser's memory stays private."""
        own = only(network.affine, network.state)
        return Client(own, {**adam_memory(own), **self.notes(network)})

    def notes(self, network: Network) -> Tensors:
        """Return what it remembers before the first batch, apart from its optimiser's memory."""
        return {}

    def slope(self, network: Network, client: Client, x: Tensor, rule: NormRule) -> Slope:
        """Return the gradient of the method's loss on x[B, ...] in the client's scales and shifts. Pure; no labels.

        Of the client's private tensors it reads its notes, and what was learnt from images of the source.
        """
        raise TypeError(f"{type(self).__name__} must define slope")

    def predict(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Return logits[B, K], BatchNorm with the statistics of x."""
        return network(client.own, x, refreshed()).logits

    def check(self, network: Network, batch: int) -> None:
        """There must be something to train, and BatchNorm needs more than one image."""
        super().check(network, batch)
        require_batch(self.name, network, batch)


def require_batch(method: str, network: Network, batch: int) -> None:
    """Refuse single images where BatchNorm needs the batch's statistics."""
    if network.norms and batch < 2:
        raise UserError(
            f"batch=1 gives adapter {method!r} no batch statistics: use batch=2 or more, or adapter"
            f" {either(usable(network, single=True))}"
        )


@dataclass(frozen=True)
class Tent(AffineAdapter):
    """Minimise entropy by normalisation scales and shifts (Adam, batch statistics)."""

    name: ClassVar[str] = "tent"
    lr: NotNegative = 1e-3

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Take one step down the entropy."""
        gradient = self.slope(network, client, x, refreshed()).gradient
        own, memory = adam(client.own, gradient, client.private, self.lr)
        return Client(own, {**client.private, **memory})

    def slope(self, network: Network, client: Client, x: Tensor, rule: NormRule) -> Slope:
        """Return the gradient of the mean entropy."""

        def loss(weights: Tensors) -> tuple[Tensor, Tensors]:
            output = network({**client.own, **weights}, x, rule)
            return entropy(output.logits).mean(), output.statistics

        gradient, statistics = torch.func.grad(loss, has_aux=True)(trained(network, client))
        return Slope(gradient, {}, torch.ones((), dtype=torch.bool, device=network.device), None, statistics)


def trained(network: Network, client: Client) -> Tensors:
    """Return the weights that a client owns: its scales and shifts, or all where a method learns by domain."""
    return {name: tensor for name, tensor in client.own.items() if name not in network.statistics}
