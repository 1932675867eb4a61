"""FedTHE's training: a global head that class frequencies do not bend, and a personal one that they do.

The extractor is the source model's and stays, so everything happens on features z. Of source client i with n_ik images
of class k:

    global     CE(W z + log n_i, y), the balanced softmax; local steps from the common head, then the mean over clients
    personal   CE(W_i z, y), from the global head on, never averaged
    h_i        mean of the client's z;  h_g their mean

Steps are Adam's, each on all images of a client. The original trains the extractor along with the global head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.adapters.common.optimisers import adam, adam_memory
from fedctta.adapters.fedthe import FedTHE, classifier, logits_by
from fedctta.core.network import Network, Tensors
from fedctta.core.tensors import named
from fedctta.errors import UserError
from fedctta.models.inputs import to_input
from fedctta.registry import MayBeInfinite
from fedctta.training.learning.shards import OnRound, Shards, Sharing


@dataclass(frozen=True)
class HeadTraining(Sharing):
    """How heads are learnt: clean images and skewed classes unless told otherwise; `steps` a client and round."""

    name: ClassVar[str] = FedTHE.name
    corruptions: str = "none"
    skew: MayBeInfinite = 1.0
    rounds: int = 20
    steps: int = 10
    personal_steps: int = 100
    lr: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rounds", "steps", "personal_steps"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be at least 1")
        if not self.lr > 0:
            raise UserError(f"lr={self.lr} must be above 0")

    def learn(self, network: Network, shards: Shards, on_round: OnRound | None = None) -> tuple[Tensors, list[float]]:
        """Learn heads."""
        return learn_heads(network, shards, self, on_round)


@torch.no_grad()
def learn_heads(
    network: Network, shards: Shards, how: HeadTraining, on_round: OnRound | None = None
) -> tuple[Tensors, list[float]]:
    """Return global.* and personal.* (one row per client): weight, bias if there is one, and mean feature.

    Also the mean balanced loss of every round, before its steps.
    """
    FedTHE().require(network, "features")
    z = torch.stack([network({}, to_input(images, network.device)).features for images in shards.images])
    y = torch.from_numpy(shards.labels).to(network.device)
    head = classifier(network)
    prior = F.one_hot(y, len(head["weight"])).sum(1).to(z.dtype).log()  # -inf: a class the client lacks stays out

    def local(steps: int) -> Callable[..., tuple[Tensors, Tensor]]:
        return torch.func.vmap(partial(fit, steps=steps, lr=how.lr))

    losses = []
    for number in range(how.rounds):
        fitted, loss = local(how.steps)(_copies(head, len(z)), z, y, prior)
        head = {name: tensor.mean(0) for name, tensor in fitted.items()}
        losses.append(float(loss.mean()))
        if not math.isfinite(losses[-1]):
            raise UserError(f"learning heads diverged in round {number + 1}: lower lr={how.lr}")
        if on_round is not None:
            on_round(number + 1, how.rounds, losses[-1])
    personal, _ = local(how.personal_steps)(_copies(head, len(z)), z, y, torch.zeros_like(prior))
    features = z.mean(1)
    shared = named("global", {**head, "feature": features.mean(0)})
    return {**shared, **named("personal", {**personal, "feature": features})}, losses


def fit(head: Tensors, z: Tensor, y: Tensor, prior: Tensor, steps: int, lr: float) -> tuple[Tensors, Tensor]:
    """Return a client's head after steps on CE(W z + prior, y), and that loss before them."""
    before, memory = balanced_loss(head, z, y, prior), adam_memory(head)
    for _ in range(steps):
        head, memory = adam(head, torch.func.grad(balanced_loss)(head, z, y, prior), memory, lr)
    return head, before


def balanced_loss(head: Tensors, z: Tensor, y: Tensor, prior: Tensor) -> Tensor:
    """Return the mean over z[n, D] of the cross-entropy of W z + prior with y."""
    return F.cross_entropy(logits_by(head, z) + prior, y)


def _copies(head: Tensors, count: int) -> Tensors:
    return {name: tensor.expand(count, *tensor.shape) for name, tensor in head.items()}
