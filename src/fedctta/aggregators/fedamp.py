"""FedAMP: every client receives its own model, moved towards the models that are near it.

    u_i  = (1 - sum_{j != i} c_ij) theta_i + sum_{j != i} c_ij theta_j
    c_ij = alpha_K A'(||theta_i - theta_j||^2),     A(x) = 1 - exp(-x / sigma)

The paper leaves the step size alpha_K open. Here alpha_K = alpha sigma / N with alpha in (0, 1] and N clients present,

    c_ij = (alpha / N) exp(-||theta_i - theta_j||^2 / sigma),

so that no client's weight on itself can fall below 1 / N, and with alpha = 1 equal models are averaged plainly.

The published test-time code (`variant=code`) fixes the weight on oneself and shares the rest by a softmax:

    W_ii = `self_weight`,    W_ij = (1 - W_ii) exp(-d_ij) / sum_{k != i} exp(-d_ik)

with d the Euclidean distance between BatchNorm statistics where clients own nothing else, and between mean features
of the source model on the clients' batches where they own weights. In its TTA-bn loop only the last client receives
anything (`receivers=last`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedctta.aggregators import Aggregator, Server, Uploads
from fedctta.aggregators.common.vectors import (
    Receivers,
    check_features,
    fingerprint,
    kept_from,
    source_feature,
    squared_distances,
)
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.ranges import Positive, PositiveShare, Share


@dataclass(frozen=True)
class FedAMP(Aggregator):
    """Weight peers by how near their models are (variant=code: fixed weight on oneself, softmax over the others)."""

    name: ClassVar[str] = "fedamp"
    title: ClassVar[str] = "FedAMP"
    alpha: PositiveShare = 1.0
    sigma: Positive = 1.0
    variant: Literal["paper", "code"] = "paper"
    self_weight: Share = 0.3
    receivers: Receivers = "all"

    def check(self, network: Network, own: Tensors) -> None:
        """The published form needs features where clients own weights."""
        if self.variant == "code":
            check_features(self.name, network, own)

    def signal(self, network: Network, client: Client, x: Tensor) -> Tensors:
        """With variant=code: the source model's mean feature, where clients own weights."""
        return source_feature(network, client, x) if self.variant == "code" else {}

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Tensor, Tensors]:
        """Compare the models, or what stands for them, and turn distances into weights."""
        active = uploads.active
        if self.variant == "paper":
            weights = attentive(squared_distances(uploads.own, active), active, self.alpha, self.sigma)
        else:
            distances = squared_distances(fingerprint(uploads), active).sqrt()
            weights = with_fixed_self(distances, active, self.self_weight)
        return kept_from(self.receivers, weights), memory


def attentive(squared: Tensor, active: Tensor, alpha: float, sigma: float) -> Tensor:
    """W of the paper from squared distances; absent clients give and get nothing."""
    peers = _peers(active)
    others = torch.where(peers, torch.exp(-squared / sigma), 0) * (alpha / active.sum())
    return others + torch.diag(1 - others.sum(1))


def with_fixed_self(distances: Tensor, active: Tensor, self_weight: float) -> Tensor:
    """W of the published code from distances; a client without peers keeps its model."""
    peers = _peers(active)
    alone = ~peers.any(1, keepdim=True)
    others = (-distances).masked_fill(~peers, -torch.inf).softmax(1)
    myself = torch.eye(len(active), dtype=distances.dtype, device=distances.device)
    return torch.where(alone, myself, self_weight * myself + (1 - self_weight) * others)


def _peers(active: Tensor) -> Tensor:
    """Which pairs [N, N] are two different clients, both present."""
    return active[:, None] & active & ~torch.eye(len(active), dtype=torch.bool, device=active.device)
