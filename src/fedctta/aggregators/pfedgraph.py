"""pFedGraph: every client chooses its collaborators by a small quadratic programme.

Client i's row x of W minimises, over the simplex (x >= 0, sum x = 1),

    lambda || x - p ||^2 + d_i . x,      d_ij = - cos(theta_i - theta_0, theta_j - theta_0)

with theta_0 the source model and p = 1/N for the N clients present (batches are equally large). d below -0.9 counts as
-1 (`snap`). Completing the square leaves lambda || x - (p - d_i / (2 lambda)) ||^2 + const: the row is the Euclidean
projection of p - d_i / (2 lambda) onto the simplex, which is exact and needs no solver.

The published test-time code (`variant=code`) compares mean features of the source model on the clients' batches where
clients own weights (with the snap: features after a ReLU mostly have cosines above 0.9, and W becomes uniform), and
BatchNorm statistics where they own nothing else (without). In its TTA-bn loop only the last client receives anything
(`receivers=last`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.aggregators import Aggregator, Server, Uploads
from fedctta.aggregators.common.vectors import (
    Receivers,
    check_features,
    cosines,
    fingerprint,
    gram,
    kept_from,
    source_feature,
)
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.ranges import Positive


@dataclass(frozen=True)
class PFedGraph(Aggregator):
    """Choose collaborators by the cosine of their updates, near uniform weights (a projection onto the simplex)."""

    name: ClassVar[str] = "pfedgraph"
    title: ClassVar[str] = "pFedGraph"
    lam: Positive = 0.8
    snap: bool = True
    variant: Literal["paper", "code"] = "paper"
    receivers: Receivers = "all"

    def check(self, network: Network, own: Tensors) -> None:
        """The published form needs features where clients own weights."""
        if self.variant == "code":
            check_features(self.name, network, own)

    def signal(self, network: Network, client: Client, x: Tensor) -> Tensors:
        """With variant=code: the source model's mean feature, where clients own weights."""
        return source_feature(network, client, x) if self.variant == "code" else {}

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Tensor, Tensors]:
        """Compare updates (or what stands for them) by cosine, project."""
        active, snap = uploads.active, self.snap
        if self.variant == "paper":
            inner = gram(uploads.own, active, server.network.state)
        else:
            inner = gram(fingerprint(uploads), active)
            snap = snap and bool(uploads.signals)
        d = -cosines(inner)
        if snap:
            d = torch.where(d < -0.9, -1, d)
        weights = project_to_simplex(1 / active.sum() - d / (2 * self.lam), active)
        return kept_from(self.receivers, weights), memory


MOST_STEPS = 64


def project_to_simplex(v: Tensor, active: Tensor) -> Tensor:
    """The nearest point of the simplex to every row of v[..., N], with zeros where not active[N].

    The projection is max(v - tau, 0) with the tau at which it sums to 1. That sum is convex and piecewise linear in
    tau, so Newton's steps from below rise to the exact tau, dropping entries until none is left to drop. It takes a
    handful of passes over v, for all rows at once, which is faster than sorting them.
    """
    v = v.masked_fill(~active, -torch.inf)
    tau = v.amax(-1, keepdim=True) - 1  # at most the right one: the largest entry alone already makes up 1
    before = torch.zeros_like(tau)
    for _ in range(min(v.shape[-1] + 1, MOST_STEPS)):  # fewer in practice; the bound is for rounding
        x = F.relu(v - tau)
        support = x.sign().sum(-1, keepdim=True)  # how many are above tau; faster than counting booleans
        if not v.is_cuda and torch.equal(support, before):  # a GPU would have to be waited for
            break
        step = (x.sum(-1, keepdim=True) - 1) / support
        tau, before = torch.where(support == before, tau, tau + step), support
    return x
