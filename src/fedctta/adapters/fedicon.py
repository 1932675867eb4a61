"""FedICON, approximately: learn to tell the client's images apart in any view of them; then predict.

    l_i  = - log  exp(cos(z_i, z_i') / tau)  /  sum over k != i of exp(cos(z_i, z_k) / tau)          (NT-Xent)
    loss = mean of l over the 2B views, z_i and z_i' being the features of two views of one image

A few steps of gradient descent per batch move all parameters except the classifier's; BatchNorm normalises with the
views' statistics and keeps a running average of them, as in training.

FedICON also trains differently, by contrasts between clients, so that features do not identify clients, and its
constants are not published. Here any source model is used, features are contrasted without a projection, and the
constants are ours: this is contrastive test-time adaptation after FedICON, not a reproduction of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.adapters import Adapter, usable
from fedctta.adapters.common.augmentation import augment
from fedctta.adapters.common.needs import Need
from fedctta.adapters.common.optimisers import descend
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.core.norms import training
from fedctta.core.randomness import advance, fork
from fedctta.core.tensors import only
from fedctta.errors import UserError, either
from fedctta.ranges import Count, NotNegative, Positive, Share


@dataclass(frozen=True)
class FedICON(Adapter):
    """Contrast two views of every image to move the extractor (an approximation of FedICON, not a reproduction)."""

    name: ClassVar[str] = "fedicon"
    pictures: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = ("images", "features", "gradients")
    single_images: ClassVar[bool] = False
    lr: NotNegative = 1e-3
    steps: Count = 3
    tau: Positive = 0.5
    momentum: Share = 0.1

    def init(self, network: Network) -> Client:
        """Own everything but the classifier; the key is private."""
        own = {**only(network.extractor, network.state), **network.statistics}
        return Client(own, {"key": torch.zeros((), dtype=torch.int64, device=network.device)})

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Take the steps, each on new views, and update the running statistics."""
        own, key = client.own, client.private["key"]
        for number in range(self.steps):
            seen = two_views(x, fork(key, number + 1))
            own = self._stepped(network, own, seen)
        return Client(own, {"key": advance(key)})

    def check(self, network: Network, batch: int) -> None:
        """There must be features, and other images to tell an image from."""
        super().check(network, batch)
        if batch < 2:
            raise UserError(
                "batch=1 gives adapter 'fedicon' no image to contrast with: use batch=2 or more, or adapter"
                f" {either(usable(network, single=True))}"
            )

    def _stepped(self, network: Network, own: Tensors, seen: Tensor) -> Tensors:
        weights = only(network.extractor, own)

        def loss(weights: Tensors) -> tuple[Tensor, Tensors]:
            output = network({**own, **weights}, seen, training(self.momentum))
            return nt_xent(output.features, self.tau), output.statistics

        gradient, statistics = torch.func.grad(loss, has_aux=True)(weights)
        return {**descend(weights, gradient, self.lr), **statistics}


def two_views(x: Tensor, key: Tensor) -> Tensor:
    """Return [2B, 3, H, W]: one view of every image, then another; each drawn on its own."""
    keys = fork(key + torch.arange(2 * len(x), device=x.device), 1)
    seen: Tensor = torch.func.vmap(lambda image, one: augment(image[None], one)[0])(torch.cat([x, x]), keys)
    return seen


def nt_xent(z: Tensor, tau: float) -> Tensor:
    """Return the mean of l over z[2B, D], where i and i + B are views of one image."""
    z = F.normalize(z, dim=-1)
    similar = z @ z.mT / tau
    others = torch.where(torch.eye(len(z), dtype=torch.bool, device=z.device), -torch.inf, similar)
    twin = similar.roll(len(z) // 2, 1).diagonal()
    return (others.logsumexp(-1) - twin).mean()
