"""Clustered federated learning: a group whose members pull in different directions is split in two.

With u_i = theta_i - (the model client i was sent last; at first the source model), all clients start as one cluster.
In every round a cluster C is split when its mean stands still while its members do not,

    || (1/|C|) sum_{i in C} u_i || < eps1    and    max_{i in C} || u_i || > eps2,

into the two groups that complete linkage on 1 - cos(u_i, u_j) merges last. Clusters stay, and clients average within
theirs: W_ij = 1 / |C| for i, j in C.

The published test-time code (`variant=code`) forgets: every round starts from one cluster. It does not look at
the mean but splits when max ||u_i|| > 0.01, |C| > 2 and the smallest cosine in C is below 0.97.

Absent clients keep their cluster's number. When a cluster is split without them, the larger half keeps the number (of
equal halves the one that moved less), so that nothing depends on the order of clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from scipy.cluster.hierarchy import linkage, to_tree
from scipy.spatial.distance import squareform
from torch import Tensor

from fedctta.aggregators import Aggregator, Server, Uploads
from fedctta.aggregators.vectors import cosines, for_active, gram
from fedctta.errors import UserError
from fedctta.network import Tensors


@dataclass(frozen=True)
class CFL(Aggregator):
    """Average within clusters, which split when their members' updates disagree (variant=code: anew every round)."""

    name: ClassVar[str] = "cfl"
    eps1: float = 0.4
    eps2: float = 1.6
    variant: Literal["paper", "code"] = "paper"

    def __post_init__(self) -> None:
        if not 0 <= self.eps1 <= self.eps2:
            raise UserError(f"cfl.eps1={self.eps1} must lie between 0 and cfl.eps2={self.eps2}")

    def init(self, server: Server) -> Tensors:
        """Everyone is in one cluster; the models sent last join when it is known what clients own."""
        return {"cluster": torch.zeros(server.clients, dtype=torch.int64, device=server.network.device)}

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Tensor, Tensors]:
        """Split clusters where updates disagree; W_ij = [same cluster] / its size."""
        memory, active = dict(memory), uploads.active
        for name, tensor in uploads.own.items():
            source = server.network.state[name].expand_as(tensor)
            memory.setdefault(f"sent.{name}", source.contiguous())
        sent = {name: memory[f"sent.{name}"] for name in uploads.own}
        cluster = memory["cluster"] if self.variant == "paper" else torch.zeros_like(memory["cluster"])
        memory["cluster"] = cluster = self.divide(gram(uploads.own, active, sent), cluster, active)
        same = (cluster[:, None] == cluster).float()
        return same / same.sum(1, keepdim=True), memory

    def step(self, mixed: Tensors, active: Tensor, memory: Tensors) -> tuple[Tensors, Tensors]:
        """Remember what everyone present is sent."""
        sent = {f"sent.{name}": for_active(active, new, memory[f"sent.{name}"]) for name, new in mixed.items()}
        return mixed, memory | sent

    def divide(self, inner: Tensor, cluster: Tensor, active: Tensor) -> Tensor:
        """Return the clusters after this round's splits, given inner products of updates[N, N]."""
        inner, divided = inner.cpu(), cluster.cpu().clone()
        numbers, here = divided.clone(), active.cpu()
        for number in sorted(set(numbers.tolist())):
            members = ((numbers == number) & here).nonzero().squeeze(1)
            products = inner[members][:, members]
            if self.disagrees(products):
                divided[members[halves(products)[1]]] = int(divided.max()) + 1
        return divided.to(cluster.device)

    def disagrees(self, inner: Tensor) -> bool:
        """Whether a cluster with these inner products of updates is to be split."""
        if len(inner) < 2:
            return False
        longest = float(inner.diagonal().max().sqrt())
        if self.variant == "code":
            return len(inner) > 2 and longest > 0.01 and float(cosines(inner).min()) < 0.97
        mean = float(inner.mean().clamp_min(0).sqrt())  # || mean u ||^2 is the mean of all u_i . u_j
        return mean < self.eps1 and longest > self.eps2


def halves(inner: Tensor) -> tuple[list[int], list[int]]:
    """The two groups that complete linkage on 1 - cos merges last, the one that keeps the cluster's number first."""
    distance = (1 - cosines(inner)).double().numpy()
    tree = to_tree(linkage(squareform(distance, checks=False), method="complete"))
    groups = [tree.left.pre_order(), tree.right.pre_order()]
    groups.sort(key=lambda group: (-len(group), float(inner.diagonal()[group].mean())))
    return groups[0], groups[1]
