"""LAME: predictions of a batch are pulled towards those of its nearest neighbours. The model is left alone.

With u = -log p of the source model, K_ij = exp(-||z_i - z_j||^2 / (2 s^2)) of unit features, s the mean distance to the
`neighbours`-th nearest (oneself included), iterate until nothing changes:

    Y <- softmax(-u + K Y)

Nothing is adapted and nothing is uploaded, so no aggregator changes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.adapters import Adapter
from fedctta.adapters.common.needs import Need
from fedctta.core.clients import Client
from fedctta.core.network import Network
from fedctta.ranges import Count


@dataclass(frozen=True)
class LAME(Adapter):
    """Smooth the source model's predictions over neighbours within the batch."""

    name: ClassVar[str] = "lame"
    short: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = ("images", "features")
    calibrated: ClassVar[bool] = False
    neighbours: Count = 5
    iterations: Count = 100

    def init(self, network: Network) -> Client:
        """Own nothing."""
        return Client(own={})

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Change nothing."""
        return client

    def predicts_alike(self, communicates: bool) -> bool:
        """The model is left alone."""
        return True

    def predict(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Return log Y, whose softmax is Y."""
        output = network(client.own, x)
        log_p = F.log_softmax(output.logits, dim=-1)
        kernel = affinity(F.normalize(output.features.flatten(1), dim=-1), self.neighbours)
        y = log_p.exp()
        for _ in range(self.iterations):  # a fixed number, which vmap can batch: it converges in far fewer
            y = torch.softmax(log_p + kernel @ y, dim=-1)
        return y.clamp_min(torch.finfo(y.dtype).tiny).log()


def affinity(z: Tensor, neighbours: int) -> Tensor:
    """The kernel K[B, B] of unit features z[B, D]."""
    squared = (2 - 2 * z @ z.mT).clamp_min(0)
    nearest = squared.topk(min(neighbours, len(z)), largest=False).values[:, -1]
    width = nearest.sqrt().mean().clamp_min(torch.finfo(z.dtype).eps)
    return torch.exp(-squared / (2 * width.square()))
