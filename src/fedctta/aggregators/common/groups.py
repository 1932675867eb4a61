"""W via K groups: N x K numbers instead of N x N, and proportionally less to compute.

    W_ij = sum_k takes_ik gives_kj + alone_i [i = j]

Everybody gives to groups, and takes from them; what is left is one's own model.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Groups(NamedTuple):
    """A W of rank K and a diagonal: client i receives sum_k takes_ik (gives theta)_k + alone_i theta_i."""

    takes: Tensor  # [N, K]
    gives: Tensor  # [K, N]
    alone: Tensor  # [N]

    def __matmul__(self, rows: Tensor) -> Tensor:
        """W rows[N, D]."""
        used = count_used(self.takes)
        return (rows * self.alone[:, None]).addmm_(self.takes[:, :used], self.gives[:used] @ rows)

    def restricted(self, receive: Tensor, trust: Tensor) -> Groups:
        """W with columns weighted by trust[N] and rows renormalised; those who do not `receive` keep their model."""
        gives, alone = self.gives * trust, self.alone * trust
        total = torch.addmv(alone, self.takes, gives.sum(1))
        mixes = receive & (total > 0)
        share = torch.where(mixes, total.clamp_min(1e-12).reciprocal(), 0)
        return Groups(self.takes * share[:, None], gives, torch.where(mixes, alone * share, 1))

    def matrix(self) -> Tensor:
        """W[N, N]."""
        return torch.diag(self.alone).addmm_(self.takes, self.gives)

    def share_among(self, member: Tensor) -> Tensor:
        """Return sum_j W_ij [j and i are members of the same kind], [N], for member[N, D] of zeros and ones."""
        return (self.takes @ (self.gives @ member) * member).sum(1) + self.alone * member.sum(1)

    def diagonal(self) -> Tensor:
        """W_ii[N]."""
        return (self.takes * self.gives.T).sum(1) + self.alone


def count_used(takes: Tensor) -> int:
    """Return how many groups, from the first to the last that anybody takes from, there are in takes[N, K].

    A GPU is not asked: it would have to be waited for.
    """
    groups = takes.shape[1]
    if takes.is_cuda or groups == 1:
        return groups
    used = takes.any(0).nonzero()
    return int(used[-1]) + 1 if len(used) else 0
