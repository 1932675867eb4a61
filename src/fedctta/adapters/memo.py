"""MEMO: every image gets its own model, one step from the source, used once and discarded.

For an image x with views x_1 ... x_V:

    pbar = (1/V) sum_v softmax(f(x_v)),    theta_x = theta - lr grad H(pbar),    logits = f(x; theta_x)

The step, plain gradient descent, moves all parameters. Views are shifted by up to an eighth of a side over black,
mirrored or not, and then AugMix of severity 1 (see `models.augmix`), as in the published code for 32x32 images.

BatchNorm layers mix (1 - a) source + a batch, the batch being the views while stepping and the image alone when
predicting. The mixture is a constant of the step: no gradient flows through the batch's part of it. Nothing is kept
and nothing is uploaded, so no aggregator changes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.adapters import Adapter
from fedctta.adapters.common.needs import Need
from fedctta.adapters.common.optimisers import descend
from fedctta.core.at_once import at_once
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.core.norms import NormRule, Statistics, refreshed
from fedctta.core.randomness import advance, fork, uniform
from fedctta.models.augmix import draw_by_key, mixture, warp
from fedctta.ranges import Count, NotNegative, Share

SEVERITY = 1.0  # of AugMix's operations
IMAGES_AT_ONCE = 4  # of one client, each with its views, their gradients and a model of its own


@dataclass(frozen=True)
class MEMO(Adapter):
    """Step on the entropy of the mean prediction over views of one image, predict it, forget."""

    name: ClassVar[str] = "memo"
    pictures: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = ("images", "gradients")
    lr: NotNegative = 0.005
    views: Count = 32
    alpha: Share = 0.1

    def init(self, network: Network) -> Client:
        """Own nothing; the key is private."""
        return Client({}, {"key": torch.zeros((), dtype=torch.int64, device=network.device)})

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Change nothing but the chance of the next batch."""
        return client._replace(private={"key": advance(client.private["key"])})

    def predict(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Return the logits[B, K] of B models, one per image."""
        rule, parameters = mixed_statistics(self.alpha), network.parameters

        def of_one(image: Tensor, key: Tensor) -> Tensor:
            seen = draw_views(image, key, self.views).to(image.dtype)

            def loss(weights: Tensors) -> Tensor:
                return marginal_entropy(network(weights, seen, rule).logits)

            stepped = descend(parameters, torch.func.grad(loss)(parameters), self.lr)
            return network(stepped, image[None], rule).logits[0]

        keys = fork(client.private["key"] + torch.arange(len(x), device=x.device), 1)
        logits: Tensor = at_once(network, of_one, IMAGES_AT_ONCE)(x, keys)
        return logits

    def predict_before(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """As after: the step belongs to the prediction, and so do the views it is taken on."""
        return self.predict(network, self.adapt(network, client, x), x)

    def predicts_alike(self, communicates: bool) -> bool:
        """Every image starts from the source."""
        return True


def mixed_statistics(alpha: float) -> NormRule:
    """Normalise with (1 - a) stored + a batch, through which no gradient flows."""
    mixed = refreshed(alpha)

    def rule(name: str, x: Tensor, old: Statistics) -> tuple[Statistics, Statistics]:
        return mixed(name, x.detach(), old)

    return rule


def draw_views(image: Tensor, key: Tensor, count: int) -> Tensor:
    """Return views[V, 3, H, W] of an image[3, H, W] in [0, 1]; vmappable over images and keys."""
    height, width = image.shape[-2:]
    places, mixing = fork(key, 1), fork(key, 2)
    across, down = (
        uniform(fork(places, k), (count,), -(n // 8), n // 8 + 1).floor() for k, n in enumerate((width, height))
    )
    mirrored = uniform(fork(places, 2), (count,)) < 0.5
    zero, one = torch.zeros_like(across), torch.ones_like(across)
    rows = (
        torch.stack((torch.where(mirrored, -one, one), zero, torch.where(mirrored, width + across, across)), -1),
        torch.stack((zero, one, down), -1),
    )
    moved = warp((255 * image).round().float().expand(count, -1, -1, -1), torch.stack(rows, -2))
    return mixture(moved, draw_by_key(mixing, count, height, width, SEVERITY))


def marginal_entropy(logits: Tensor) -> Tensor:
    """H of the mean over views of softmax(logits[V, K])."""
    log_mean = F.log_softmax(logits, dim=-1).logsumexp(0) - math.log(len(logits))
    return -(log_mean.exp() * log_mean).sum()
