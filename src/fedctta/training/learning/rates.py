"""ATP's training: which tensors to move, and how far, so that one unsupervised step lowers the supervised loss.

A source client with rates alpha goes through its images batch by batch. With h the directions of `atp`, and
theta = theta_G - alpha h the adapted model,

    g        = grad of the cross-entropy with the labels of the same batch, at theta
    alpha_l <- alpha_l + eta <g_l, h_l> / sqrt(numel_l)

which descends the loss in alpha to first order, h held fixed. The server averages the rates of those who took part in
the round. Rates start at 0.

One batch of confident mistakes can outweigh hundreds, above all at the first layers, and the published eta = 0.1 then
diverges: so what eta multiplies is held within +-`limit`, which the original does not do (limit=inf).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.adapters.atp import ATP, adaptable, direction, step
from fedctta.core.clients import Client, choose_lift
from fedctta.core.network import Network, Tensors
from fedctta.errors import UserError
from fedctta.models.inputs import to_input
from fedctta.registry import MayBeInfinite
from fedctta.training.learning.shards import OnRound, Shards, Sharing


@dataclass(frozen=True)
class RateTraining(Sharing):
    """How rates are learnt; `share` is the part of the source clients in a round, `eta` the rates' own rate."""

    name: ClassVar[str] = ATP.name
    rounds: int = 200
    batch: int = 20
    share: float = 0.25
    eta: float = 0.1
    limit: MayBeInfinite = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds < 1:
            raise UserError(f"rounds={self.rounds} must be at least 1")
        if not 2 <= self.batch <= self.images:
            raise UserError(f"batch={self.batch} must lie between 2 and images={self.images}")
        if not 0 < self.share <= 1:
            raise UserError(f"share={self.share} must lie above 0 and up to 1")
        for name in ("eta", "limit"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name}={getattr(self, name)} must be above 0")

    def learn(self, network: Network, shards: Shards, on_round: OnRound | None = None) -> tuple[Tensors, list[float]]:
        """Learn rates."""
        return learn_rates(network, shards, self, on_round)


@torch.no_grad()
def learn_rates(
    network: Network, shards: Shards, how: RateTraining, on_round: OnRound | None = None
) -> tuple[Tensors, list[float]]:
    """Return one rate a tensor, by name, and the mean loss after adaptation of every round."""
    names = list(adaptable(network))
    clients, each = shards.labels.shape
    several = max(1, round(how.share * clients))
    images, labels = torch.from_numpy(shards.images), torch.from_numpy(shards.labels)
    generator = torch.Generator().manual_seed(how.seed)
    lift = choose_lift("auto", network, Client(adaptable(network)), how.batch)
    learn = lift(lambda rates, x, y: improve(network, rates, x, y, how.eta, how.limit))
    rates, losses = torch.zeros(len(names), device=network.device), []
    for number in range(how.rounds):
        who = torch.randperm(clients, generator=generator)[:several]
        order = torch.rand(several, each, generator=generator).argsort(1)
        theirs, seen = rates.expand(several, -1), []
        for chosen in order[:, : each - each % how.batch].split(how.batch, 1):  # type: ignore[no-untyped-call]
            x = to_input(images[who[:, None], chosen], network.device)
            theirs, loss = learn(theirs, x, labels[who[:, None], chosen].to(network.device))
            seen.append(loss.mean())
        rates = theirs.mean(0)
        losses.append(float(torch.stack(seen).mean()))
        if not math.isfinite(losses[-1]) or not rates.isfinite().all():
            raise UserError(f"learning rates diverged in round {number + 1}: lower eta={how.eta}")
        if on_round is not None:
            on_round(number + 1, how.rounds, losses[-1])
    return dict(zip(names, rates.unbind(), strict=True)), losses


def improve(
    network: Network, rates: Tensor, x: Tensor, y: Tensor, eta: float, limit: float = math.inf
) -> tuple[Tensor, Tensor]:
    """Return the rates[L] after one labelled batch, and the loss they gave before."""
    source = adaptable(network)
    h = direction(network, source, x)

    def loss(theta: Tensors) -> tuple[Tensor, Tensor]:
        value = F.cross_entropy(network(theta, x).logits, y)
        return value, value

    g, value = torch.func.grad(loss, has_aux=True)(step(source, h, rates))
    gains = [(g[name] * h[name]).sum() / math.sqrt(h[name].numel()) for name in source]
    return rates + eta * torch.stack(gains).clamp(-limit, limit), value
