"""W of a few neighbours each: N x k numbers in place of N x N.

A row of W keeps its k best scores, oneself always among them, and is the softmax over those:

    W_ij = exp(s_ij) / sum_{m in K_i} exp(s_im)   for j in K_i, otherwise 0

which is the softmax over everybody with all other weights set to zero and the rows renormalised. Scores are looked
through a few rows at a time: finding neighbours takes N^2 comparisons, and memory for N k numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

SCORES_AT_ONCE = 2**20


class Neighbours(NamedTuple):
    """A W with k weights per row: client i receives sum_m weight[i, m] theta_{who[i, m]}; who[i, 0] is i."""

    who: Tensor  # [N, k]
    weight: Tensor  # [N, k]

    def __matmul__(self, rows: Tensor) -> Tensor:
        """W rows[N, D], without a copy of any neighbour's."""
        return F.embedding_bag(self.who, rows, per_sample_weights=self.weight, mode="sum")

    def restricted(self, receive: Tensor, trust: Tensor) -> Neighbours:
        """W with columns weighted by trust[N] and rows renormalised; those who do not `receive` keep their model."""
        present = self.weight * trust[self.who]
        total = present.sum(1, keepdim=True)
        alone = (~receive | (total.squeeze(1) <= 0)).unsqueeze(1)
        oneself = torch.zeros_like(self.weight)
        oneself[:, 0] = 1
        return Neighbours(self.who, torch.where(alone, oneself, present / total.clamp_min(1e-12)))

    def diagonal(self) -> Tensor:
        """W_ii[N]."""
        return self.weight[:, 0]

    def matrix(self) -> Tensor:
        """W[N, N] as a sparse tensor."""
        clients, k = self.who.shape
        rows = torch.arange(clients, device=self.who.device).repeat_interleave(k)
        places = torch.stack([rows, self.who.flatten()])
        # Given as an argument instead, torch 2.11 warns.
        with torch.sparse.check_sparse_tensor_invariants(False):  # type: ignore[no-untyped-call]
            return torch.sparse_coo_tensor(places, self.weight.flatten(), (clients, clients))


def nearest(score: Callable[[slice], Tensor], active: Tensor, k: int) -> Neighbours:
    """The k best of every row: the client itself and k - 1 active others (of weight 0 if there are fewer).

    `score(rows)` gives the scores [R, N] of some rows. Among equal scores it is chance who is taken.
    """
    clients = len(active)
    step = max(1, SCORES_AT_ONCE // clients)
    parts = [_nearest(score, slice(start, min(start + step, clients)), active, k) for start in range(0, clients, step)]
    return Neighbours(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _nearest(score: Callable[[slice], Tensor], rows: slice, active: Tensor, k: int) -> Neighbours:
    scores = score(rows)
    oneself = torch.arange(rows.start, rows.stop, device=scores.device).unsqueeze(1)
    own = scores.gather(1, oneself)
    others = scores.masked_fill(~active, -torch.inf).scatter(1, oneself, -torch.inf)
    best, who = others.topk(k - 1, dim=1)
    return Neighbours(torch.cat([oneself, who], 1), torch.cat([own, best], 1).softmax(1))
