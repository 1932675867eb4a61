"""Clustered federated learning: a group whose members pull in different directions is split in two.

With u_i = theta_i - (the model client i was sent last; at first the source model), all clients start as one cluster.
In every round a cluster C is split when its mean stands still while its members do not,

    || (1/|C|) sum_{i in C} u_i || < eps1    and    max_{i in C} || u_i || > eps2,

into the two groups that complete linkage on 1 - cos(u_i, u_j) merges last. Clusters stay, and clients average within
theirs: W_ij = 1 / |C| for i, j in C.

The published test-time code (`variant=code`) forgets: every round starts from one cluster. It does not look at the
mean but splits when max ||u_i|| > 0.01, |C| > 2 and the smallest cosine in C is below 0.97. It averages weights only:
BatchNorm statistics stay where they are (W = I). Its updates are those of the whole state, though: of statistics, and
of the counters of batches that BatchNorm layers keep, which grow by one in each of L layers, for everybody alike:

    cos(u_i, u_j) = (L + u_i . u_j) / sqrt((L + ||u_i||^2) (L + ||u_j||^2))

So max ||u_i|| is always above 0.01, and updates at right angles are split only if they are longer than about
sqrt(0.03 L): 0.53 for the 9 layers of ResNet-8. On CIFAR-10-C those are 13 to 42 long, nearly all of it statistics, and
each of 45 rounds was split (NIID, `adapter=grad grad.variant=code weights=paper slots=3`, seed 0). L counts the layers
of which clients own the statistics.

Absent clients keep their cluster's number. When a cluster is split without them, the larger half keeps the number (of
equal halves the one that moved less), so that nothing depends on the order of clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedctta.aggregators import Aggregator, Server, Uploads
from fedctta.aggregators.common.mixing import Mixing
from fedctta.aggregators.common.vectors import cosines, for_active, gram, owns_weights
from fedctta.core.network import Network, Tensors
from fedctta.errors import UserError
from fedctta.ranges import NotNegative


@dataclass(frozen=True)
class CFL(Aggregator):
    """Average within clusters, which split when their members' updates disagree (variant=code: anew every round)."""

    name: ClassVar[str] = "cfl"
    title: ClassVar[str] = "CFL"
    eps1: NotNegative = 0.4
    eps2: NotNegative = 1.6
    variant: Literal["paper", "code"] = "paper"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eps1 > self.eps2:
            raise UserError(f"cfl.eps1={self.eps1} must be at most cfl.eps2={self.eps2}")

    def check(self, network: Network, own: Tensors) -> None:
        """There must be something that the published code averages."""
        if self.variant == "code" and not owns_weights(network, own):
            raise UserError(
                "cfl.variant=code leaves BatchNorm statistics at home and this adapter adapts nothing else: use"
                " adapter=grad, cfl.variant=paper or aggregator=local"
            )

    def init(self, server: Server) -> Tensors:
        """Everyone is in one cluster; the models sent last join when it is known what clients own."""
        return {"cluster": torch.zeros(server.clients, dtype=torch.int64, device=server.network.device)}

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Mixing, Tensors]:
        """Split clusters where updates disagree; W_ij = [same cluster] / its size."""
        memory, active = dict(memory), uploads.active
        for name, tensor in uploads.own.items():
            source = server.network.state[name].expand_as(tensor)
            memory.setdefault(f"sent.{name}", source.contiguous())
        sent = {name: memory[f"sent.{name}"] for name in uploads.own}
        inner, cluster = gram(uploads.own, active, sent), memory["cluster"]
        if self.variant == "code":
            inner, cluster = inner + counters(uploads.own), torch.zeros_like(cluster)
        memory["cluster"] = cluster = self.divide(inner, cluster, active)
        same = (cluster[:, None] == cluster).float()
        weights = same / same.sum(1, keepdim=True)
        if self.variant == "paper" or not uploads.own:
            return weights, memory
        alone = torch.eye(len(active), device=active.device)
        return {name: alone if name in server.network.statistics else weights for name in uploads.own}, memory

    def step(
        self, server: Server, uploads: Uploads, mixed: Tensors, receive: Tensor, memory: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Remember what everyone present is sent."""
        sent = {f"sent.{name}": for_active(receive, new, memory[f"sent.{name}"]) for name, new in mixed.items()}
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


def counters(own: Tensors) -> int:
    """Return what equal counters of batches, one more in every layer, add to every inner product of updates."""
    return sum(name.endswith("running_mean") for name in own)


def halves(inner: Tensor) -> tuple[list[int], list[int]]:
    """The two groups that complete linkage on 1 - cos merges last, the one that keeps the cluster's number first."""
    from scipy.cluster.hierarchy import linkage, to_tree  # here, because every run looks at the list of methods
    from scipy.spatial.distance import squareform

    distance = (1 - cosines(inner)).double().numpy()
    tree = to_tree(linkage(squareform(distance, checks=False), method="complete"))
    groups = [tree.left.pre_order(), tree.right.pre_order()]
    groups.sort(key=lambda group: (-len(group), float(inner.diagonal()[group].mean())))
    return groups[0], groups[1]
