"""ROID: certain and diverse images teach, consistency over views steadies, and the source is never far.

    weights      d_b = 1 - cos(qbar, p_b),  c_b = -H(p_b),  both stretched to [0, 1] over the batch
                 w_b = exp(d_b c_b / T),  0 where d_b < mean d;   qbar <- 0.9 qbar + 0.1 mean_b p_b afterwards
    loss         (1/B) sum_b w_b (SLR(p_b) + SCE(z_b, z'_b)),   z' the logits of one augmented view of the images kept
                 SLR(p) = - sum_k p_k log(p_k / (1 - p_k) + 1e-5),  p at most 0.99   (soft likelihood ratio)
                 SCE, the mean of the cross-entropies in both directions; both carry gradients
    afterwards   theta <- 0.99 theta + 0.01 theta_source                             (weight ensembling)
    prediction   z_k (pi_k + s) / (1 + s K),   pi = mean_b p_b,  s = max(1/B, 1/K) / max_k pi_k   (prior correction)

Scales and shifts of normalisation layers, one step of Adam. BatchNorm layers normalise with the batch's statistics,
those of the view with the statistics of the images kept. As in the published code the prior multiplies logits rather
than probabilities. Where a batch has no spread in d or c, that term is 0 (the published code divides 0 by 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedctta.adapters.common.augmentation import augment
from fedctta.adapters.common.losses import cosine, entropy, symmetric_cross_entropy
from fedctta.adapters.common.needs import Need
from fedctta.adapters.common.optimisers import adam
from fedctta.adapters.tent import AffineAdapter
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.core.norms import refreshed, weighted
from fedctta.core.randomness import advance
from fedctta.core.tensors import towards
from fedctta.ranges import NotNegative, Positive, Share


@dataclass(frozen=True)
class ROID(AffineAdapter):
    """Weigh images by certainty and diversity, keep views consistent and weights near the source, correct the prior."""

    name: ClassVar[str] = "roid"
    pictures: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = ("images", "affine", "features", "gradients")
    calibrated: ClassVar[bool] = False
    lr: NotNegative = 1e-3
    temperature: Positive = 1 / 3
    momentum: Share = 0.99  # the rest is the source's share
    momentum_mean: Share = 0.9

    def init(self, network: Network) -> Client:
        """Remember, privately, the mean prediction, uniform at first."""
        client = super().init(network)
        classes = network.state[f"{network.classifier}.weight"].shape[0]
        mean = torch.full((classes,), 1 / classes, device=network.device)
        key = torch.zeros((), dtype=torch.int64, device=network.device)
        return client._replace(private={**client.private, "mean": mean, "key": key})

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Take one weighted step, then one towards the source."""
        key, mean = client.private["key"], client.private["mean"]
        view = augment(x, key, "roid")

        def loss(weights: Tensors) -> tuple[Tensor, Tensor]:
            logits = network(weights, x, refreshed()).logits
            weight = worth(logits.detach(), mean, self.temperature)
            others = network(weights, view, weighted((weight > 0).to(x.dtype))).logits
            each = soft_likelihood_ratio(logits) + symmetric_cross_entropy(others, logits)
            return (weight * each).mean(), logits.detach().softmax(-1).mean(0)

        gradient, now = torch.func.grad(loss, has_aux=True)(client.own)
        own, memory = adam(client.own, gradient, client.private, self.lr)
        memory |= {"mean": torch.lerp(now, mean, self.momentum_mean), "key": advance(key)}
        return Client(towards(own, network.state, 1 - self.momentum), memory)

    def predict(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Return the logits[B, K], BatchNorm with the statistics of x, corrected by the prior."""
        return corrected(super().predict(network, client, x))


def worth(logits: Tensor, mean: Tensor, temperature: float) -> Tensor:
    """Return the weight of every image: high if it is certain and unlike the mean prediction, 0 if it is too like."""
    diverse, certain = stretched(1 - cosine(mean, logits.softmax(-1))), stretched(-entropy(logits))
    return torch.exp(diverse * certain / temperature) * (diverse >= diverse.mean())


def stretched(values: Tensor) -> Tensor:
    """Map values[B] to [0, 1]; all to 0 if they are all equal."""
    low, high = values.aminmax()
    return (values - low) / (high - low).clamp_min(torch.finfo(values.dtype).tiny)


def soft_likelihood_ratio(logits: Tensor) -> Tensor:
    """- sum_k p_k log(p_k / (1 - p_k) + 1e-5) of p = softmax(logits), p at most 0.99."""
    p = logits.softmax(-1).clamp(max=0.99)
    return -(p * torch.log(p / (1 - p) + 1e-5)).sum(-1)


def corrected(logits: Tensor) -> Tensor:
    """Multiply logits[B, K] by the batch's smoothed mean prediction."""
    images, classes = logits.shape
    prior = logits.softmax(-1).mean(0)
    smooth = max(1 / images, 1 / classes) / prior.amax()
    return logits * (prior + smooth) / (1 + smooth * classes)
