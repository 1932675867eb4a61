"""EATA: learn only from images that are reliable and new, and stay near the source where it matters.

    reliable      H(p_b) < E0 = 0.4 ln K
    not redundant |cos(pbar, p_b)| < margin;  pbar <- 0.9 pbar + 0.1 mean of the p_b that passed
    loss          mean over those that passed of exp(E0 - H_b) H_b  +  fisher sum_w F_w (w - w_source)^2

F is the diagonal Fisher information of the source model on `images` clean images, unlabelled: the mean over batches of
the squared gradient of the cross-entropy with its own arg-max. Batches are as large as those the client will see, since
BatchNorm normalises by them and a squared mean gradient shrinks with their size. In a simulation the images are the
first of the clean test set, which the stream shows corrupted (the published code takes clean test images too); a device
takes those of --source-images.

A batch in which nothing passes changes nothing, Adam's moments included. `eta` is EATA without the second term, and
`rdumb` is ETA that starts over after every 1,000 batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.adapters.common.losses import cosine, entropy
from fedctta.adapters.common.needs import Need
from fedctta.adapters.common.optimisers import adam
from fedctta.adapters.tent import AffineAdapter, Slope, trained
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.core.norms import NormRule, refreshed
from fedctta.core.outputs import Inputs, split_rows
from fedctta.core.tensors import choose, masked_mean, named, only, under
from fedctta.ranges import Count, CountOrZero, NotNegative


@dataclass(frozen=True)
class EATA(AffineAdapter):
    """Minimise the entropy of reliable, non-redundant images; keep important weights near the source."""

    name: ClassVar[str] = "eata"
    without_images: ClassVar[str] = "fisher=0"
    needs: ClassVar[tuple[Need, ...]] = ("affine", "features", "gradients")
    lr: NotNegative = 1e-3
    threshold: NotNegative = 0.4  # of ln K
    margin: NotNegative = 0.4
    fisher: NotNegative = 1.0
    images: CountOrZero = 2000

    def notes(self, network: Network) -> Tensors:
        """Return the mean prediction so far and whether there is one."""
        classes = network.state[f"{network.classifier}.weight"].shape[0]
        return {"mean": torch.zeros(classes, device=network.device), "met": torch.zeros((), device=network.device)}

    @property
    def source_images(self) -> int:
        """As many as asked for, unless nothing is anchored."""
        return self.images if self.fisher else 0

    def study(self, network: Network, images: Inputs, batch: int) -> Tensors:
        """Return the Fisher information of the source model's scales and shifts."""
        own = only(network.affine, network.state)

        def loss(weights: Tensors, x: Inputs) -> Tensor:
            logits = network(weights, x, refreshed()).logits
            return F.cross_entropy(logits, logits.detach().argmax(-1))

        total = {name: torch.zeros_like(tensor) for name, tensor in own.items()}
        batches = split_rows(images, batch)
        for x in batches:
            gradient = torch.func.grad(loss)(own, x)
            total = {name: t + gradient[name].square() / len(batches) for name, t in total.items()}
        return named("fisher", total)

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Take one step on what passes both filters."""
        slope = self.slope(network, client, x, refreshed())
        own, memory = adam(client.own, slope.gradient, client.private, self.lr)
        kept = {**client.private, **choose(slope.some, memory, client.private), **slope.notes}
        return Client(choose(slope.some, own, client.own), kept)

    def slope(self, network: Network, client: Client, x: Tensor, rule: NormRule) -> Slope:
        """Return the gradient of the loss on what passes both filters; without any, there is no step."""
        limit = self.threshold * math.log(len(client.private["mean"]))
        mean, met = client.private["mean"], client.private["met"]
        importance = under("fisher", client.private)

        def loss(weights: Tensors) -> tuple[Tensor, tuple[Tensor, Tensor, Tensors]]:
            output = network({**client.own, **weights}, x, rule)
            h, p = entropy(output.logits), output.logits.detach().softmax(-1)
            similar = (met > 0) & (cosine(mean, p).abs() >= self.margin)
            passed = ((h.detach() < limit) & ~similar).to(h.dtype)
            value = masked_mean(torch.exp(limit - h.detach()) * h, passed)
            for name, f in importance.items():
                value = value + self.fisher * (f * (weights[name] - network.state[name]).square()).sum()
            return value, (passed, p, output.statistics)

        gradient, (passed, p, statistics) = torch.func.grad(loss, has_aux=True)(trained(network, client))
        now = (passed[:, None] * p).sum(0) / passed.sum().clamp_min(1)
        notes = {"mean": torch.where(met > 0, torch.lerp(mean, now, 0.1), now), "met": torch.ones_like(met)}
        some = passed.sum() > 0
        return Slope(gradient, choose(some, notes, client.private), some, None, statistics)


@dataclass(frozen=True)
class ETA(EATA):
    """Minimise the entropy of reliable, non-redundant images (EATA without its anchor)."""

    name: ClassVar[str] = "eta"
    fisher: NotNegative = 0.0


@dataclass(frozen=True)
class RDumb(EATA):
    """ETA that restarts from the source model after a fixed number of batches."""

    name: ClassVar[str] = "rdumb"
    fisher: NotNegative = 0.0
    every: Count = 1000

    def init(self, network: Network) -> Client:
        """Count batches too."""
        client = super().init(network)
        return client._replace(private={**client.private, "batches": torch.zeros((), device=network.device)})

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Start over if it is time, then adapt."""
        after = super().adapt(network, self._due(network, client), x)
        return after._replace(private={**after.private, "batches": client.private["batches"] + 1})

    def predict_before(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Start over if it is time, then predict."""
        return self.predict(network, self._due(network, client), x)

    def _due(self, network: Network, client: Client) -> Client:
        """Return the client, or a fresh one if it is time."""
        fresh, batches = self.init(network), client.private["batches"]
        again = (batches > 0) & (batches % self.every == 0)
        private = {**client.private, **choose(again, fresh.private, client.private)}
        return Client(choose(again, fresh.own, client.own), private)
