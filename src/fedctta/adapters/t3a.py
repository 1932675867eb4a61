"""T3A: the classifier becomes the centroids of confidently classified features.

Every class k has M places for supports, the first taken by its row of the source's classifier. A test feature z joins
the class it is predicted to be in; of a class's supports the M with the lowest entropy stay. Then

    c_k = normalised sum over k's supports of z / ||z||,     logits_k = z . c_k

so c is the client's classifier: it is uploaded and averaged. No gradient; BatchNorm as in the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.adapters import Adapter
from fedctta.adapters.common.losses import entropy
from fedctta.adapters.common.needs import Need
from fedctta.core.clients import Client
from fedctta.core.network import Network
from fedctta.ranges import Count


@dataclass(frozen=True)
class T3A(Adapter):
    """Replace the classifier by centroids of the most certain features of each class."""

    name: ClassVar[str] = "t3a"
    needs: ClassVar[tuple[Need, ...]] = ("images", "features")
    calibrated: ClassVar[bool] = False
    supports: Count = 20

    def init(self, network: Network) -> Client:
        """Own the classifier; supports and their entropies are private (an empty place has infinite entropy)."""
        rows = self._rows(network)
        classes, dim = rows.shape
        supports = rows.new_zeros(classes, self.supports, dim)
        supports[:, 0] = rows
        certain = rows.new_full((classes, self.supports), torch.inf)
        certain[:, 0] = entropy(self._logits(network, rows))
        private = {"supports": supports, "entropy": certain}
        return Client(self._classifier(network, supports, certain), private)

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Offer the batch's features to the classes they are predicted to be in."""
        z = network({}, x).features
        logits = self._logits(network, z)
        h, label = entropy(logits), logits.argmax(-1)
        theirs = torch.arange(logits.shape[-1], device=z.device)[:, None] == label  # [K, B]
        offered = torch.where(theirs, h, torch.inf)
        certain, places = torch.cat([client.private["entropy"], offered], 1).topk(self.supports, largest=False)
        everybody = torch.cat([client.private["supports"], z.expand(len(theirs), *z.shape)], 1)
        supports = everybody.gather(1, places[..., None].expand(-1, -1, z.shape[-1]))
        return Client(self._classifier(network, supports, certain), {"supports": supports, "entropy": certain})

    def _logits(self, network: Network, z: Tensor) -> Tensor:
        bias = network.state.get(f"{network.classifier}.bias")
        return F.linear(z, self._rows(network), bias)

    def _rows(self, network: Network) -> Tensor:
        """Return the source's classifier[K, D], which may be a convolution of single pixels."""
        return network.state[f"{network.classifier}.weight"].flatten(1)

    def _classifier(self, network: Network, supports: Tensor, certain: Tensor) -> dict[str, Tensor]:
        taken = certain.isfinite()[..., None]
        centroids = F.normalize((F.normalize(supports, dim=-1) * taken).sum(1), dim=-1)
        own = {f"{network.classifier}.weight": centroids.view_as(network.state[f"{network.classifier}.weight"])}
        if f"{network.classifier}.bias" in network.state:
            own[f"{network.classifier}.bias"] = torch.zeros_like(network.state[f"{network.classifier}.bias"])
        return own
