"""BPA: adapt to the batch, with the server's model as a Gaussian prior (the client side of BPFedCTTA).

    theta' = argmin over theta of  E_x H(p(y|x; theta)) + (lambda / 2) || theta - theta_G ||^2
    lambda = Hbar / sigma^2              precision=high: a prior that is unsure of this batch holds more tightly
    lambda = (ln K - Hbar) / sigma^2     precision=low: one that is sure of it does

theta_G is the model last received from the server (the source until then) and Hbar its mean entropy on the batch. The
paper's formula is the first, its text describes the second. The result is a mode alone: the paper speaks of a posterior
N(theta', Sigma_k) that the server would filter, and no Sigma_k is estimated or sent here (see `ugsa`). Other losses
than entropy may take the first term's place.

With g the loss's gradient, at theta = theta_G to begin with (start=own: at the client's last adapted model), a step is

    theta <- (theta - lr g + lr lambda theta_G) / (1 + lr lambda)

which minimises the quadratic exactly and the loss linearised. So it never shoots past the prior, however large lr
lambda is, and counts from the first step on, when the quadratic's own gradient at theta_G is still zero. It is plain
gradient descent on all parameters (trains=all), while for the scales and shifts of normalisation layers (trains=norm)
Adam's step takes the place of lr g, its moments living as long as the client. BatchNorm layers normalise with the
batch's statistics, now and when predicting.

What is trained is uploaded. The paper's learning rate, steps and sigma are unknown: lr is Tent's, and sigma = 0.03 is
about sqrt(lr), so that lr lambda is about 1 for a prior with an entropy of one nat: it takes half of every step back.
Tensors that an aggregator does not share stay as the client adapted them, and so they are in its next prior. With
aggregator=local nothing is ever received, and the prior stays the source.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedctta.adapters import Adapter
from fedctta.adapters.common.needs import Need
from fedctta.adapters.common.optimisers import adam, adam_memory, descend
from fedctta.adapters.grad import mean_entropy, pseudo_label_loss
from fedctta.adapters.roid import soft_likelihood_ratio
from fedctta.adapters.shot import information_loss
from fedctta.adapters.tent import require_batch
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.core.norms import refreshed
from fedctta.core.tensors import named, only, under
from fedctta.ranges import Count, NotNegative, Positive


@dataclass(frozen=True)
class BPA(Adapter):
    """Minimise entropy with the server's model as a prior, which is stronger the less (or more) certain it is."""

    name: ClassVar[str] = "bpa"
    needs: ClassVar[tuple[Need, ...]] = ("affine", "gradients")
    single_images: ClassVar[bool] = False
    lr: NotNegative = 1e-3
    steps: Count = 1
    sigma: Positive = 0.03
    precision: Literal["high", "low"] = "high"
    loss: Literal["entropy", "infomax", "pseudo", "slr"] = "entropy"
    trains: Literal["norm", "all"] = "norm"
    start: Literal["received", "own"] = "received"
    predict_with: Literal["adapted", "received"] = "adapted"

    def init(self, network: Network) -> Client:
        """Own what is trained; the prior, the model last adapted and Adam's moments are private."""
        own = only(network.affine, network.state) if self.trains == "norm" else network.parameters
        private = named("prior", own)
        if self._returns_to_adapted:
            private |= named("adapted", own)
        if self.trains == "norm":
            private |= adam_memory(own)
        return Client(own, private)

    @property
    def _returns_to_adapted(self) -> bool:
        """Whether the adapted model is used again after a download has taken its place."""
        return self.predict_with == "adapted" or self.start == "own"

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Take the steps from the prior, or from the client's own model."""
        private, prior = client.private, under("prior", client.private)
        weights = self._first(client)

        def loss(weights: Tensors) -> tuple[Tensor, Tensor]:
            logits = network(weights, x, refreshed()).logits
            return _LOSSES[self.loss](logits), logits.detach()

        pull: Tensor | None = None
        for _ in range(self.steps):
            gradient, logits = torch.func.grad(loss, has_aux=True)(weights)
            if pull is None:  # the first logits are the prior's, unless the client starts elsewhere
                judged = logits if self.start == "received" else network(prior, x, refreshed()).logits
                pull = self.lr * tightness(judged, self.sigma, self.precision)
            if self.trains == "norm":
                weights, moments = adam(weights, gradient, private, self.lr)
                private = {**private, **moments}
            else:
                weights = descend(weights, gradient, self.lr)
            weights = pull_to_prior(weights, prior, pull)
        if self._returns_to_adapted:
            private = {**private, **named("adapted", weights)}
        return Client(weights, private)

    def _first(self, client: Client) -> Tensors:
        """Return the weights that the steps start from."""
        return under("prior" if self.start == "received" else "adapted", client.private)

    @property
    def receives(self) -> bool:
        """What the server sends is the next prior."""
        return True

    def receive(self, network: Network, client: Client, x: Tensor) -> Client:
        """Keep what came as the prior; the adapted model takes its place again (predict_with=received: it does not)."""
        private = {**client.private, **named("prior", client.own)}
        return Client(under("adapted", private) if self.predict_with == "adapted" else client.own, private)

    def predict(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Return logits[B, K], BatchNorm with the statistics of x."""
        return network(client.own, x, refreshed()).logits

    def predict_before(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Return the logits[B, K] of the model that the steps start from."""
        return network(self._first(client), x, refreshed()).logits

    def check(self, network: Network, batch: int) -> None:
        """There must be something to train, and BatchNorm needs more than one image."""
        for need in self.needs if self.trains == "norm" else self.needs[1:]:
            self.require(network, need)
        require_batch(self.name, network, batch)


def tightness(logits: Tensor, sigma: float, precision: Literal["high", "low"]) -> Tensor:
    """Return lambda, given the prior's logits[B, K]: Hbar / sigma^2, or (ln K - Hbar) / sigma^2."""
    doubt = mean_entropy(logits)
    if precision == "low":
        doubt = (math.log(logits.shape[-1]) - doubt).clamp_min(0)  # rounding can take it below
    return doubt / sigma**2


def pull_to_prior(weights: Tensors, prior: Tensors, pull: Tensor) -> Tensors:
    """Return (theta + pull theta_G) / (1 + pull)."""
    share = pull / (1 + pull)
    return {name: torch.lerp(weight, prior[name], share) for name, weight in weights.items()}


def _mean_likelihood_ratio(logits: Tensor) -> Tensor:
    return soft_likelihood_ratio(logits).mean()


_LOSSES = {
    "entropy": mean_entropy,
    "infomax": information_loss,
    "pseudo": pseudo_label_loss,
    "slr": _mean_likelihood_ratio,
}
