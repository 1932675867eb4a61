"""MEMO: every image gets a model of its own, one step from the source, used once and forgotten.

For an image x with views x_1 ... x_V:

    pbar = (1/V) sum_v softmax(f(x_v)),    theta_x = theta - lr grad H(pbar),    logits = f(x; theta_x)

The step, plain gradient descent, moves all parameters. BatchNorm layers mix (1 - a) source + a batch, the batch being
the views while stepping and the image alone when predicting. Views come from the augmentation of `cotta`; the original
draws them by AugMix. Nothing lives on and nothing travels, so any aggregator leaves it as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.adapters import Adapter
from fedctta.adapters.augmentation import views
from fedctta.adapters.optimisers import descend
from fedctta.clients import Client
from fedctta.errors import UserError
from fedctta.network import Network, Tensors, refreshed
from fedctta.randomness import advance, fork

IMAGES_AT_ONCE = 4  # of one client, each with its views, their gradients and a model of its own


@dataclass(frozen=True)
class MEMO(Adapter):
    """Step on the entropy of the mean prediction over views of one image, predict it, forget."""

    name: ClassVar[str] = "memo"
    lr: float = 0.005
    views: int = 16
    alpha: float = 0.1

    def __post_init__(self) -> None:
        if self.lr < 0:
            raise UserError(f"memo.lr={self.lr} must not be negative")
        if self.views < 1:
            raise UserError(f"memo.views={self.views} must be at least 1")
        if not 0 <= self.alpha <= 1:
            raise UserError(f"memo.alpha={self.alpha} must lie between 0 and 1")

    def init(self, network: Network) -> Client:
        """Own nothing; the key is private."""
        return Client({}, {"key": torch.zeros((), dtype=torch.int64, device=network.device)})

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Change nothing but the chance of the next batch."""
        return client._replace(private={"key": advance(client.private["key"])})

    def predict(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Return the logits[B, K] of B models, one an image."""
        rule, parameters = refreshed(self.alpha), network.parameters

        def of_one(image: Tensor, key: Tensor) -> Tensor:
            seen = views(image[None], key, "cotta", self.views).flatten(0, 1)

            def loss(weights: Tensors) -> Tensor:
                return marginal_entropy(network(weights, seen, rule).logits)

            stepped = descend(parameters, torch.func.grad(loss)(parameters), self.lr)
            return network(stepped, image[None], rule).logits[0]

        keys = fork(client.private["key"] + torch.arange(len(x), device=x.device), 1)
        logits: Tensor = torch.func.vmap(of_one, chunk_size=IMAGES_AT_ONCE)(x, keys)
        return logits

    def check(self, network: Network, batch: int) -> None:
        """Views are of whole images."""
        network.require_per_image(self.name)


def marginal_entropy(logits: Tensor) -> Tensor:
    """H of the mean over views of softmax(logits[V, K])."""
    log_mean = F.log_softmax(logits, dim=-1).logsumexp(0) - math.log(len(logits))
    return -(log_mean.exp() * log_mean).sum()
