"""FedTSA's TS-Block: attention over time, then over clients. Equations as in the paper.

X[N, T, D] holds the last T slots' indicators of N clients, `known[N, T]` which of them arrived; a slot that did not
is zero in X, no key for anybody and no part of the loss, so it changes nothing for the others.

    A^(T) = Q K^T / sqrt(D),  X^TA  = softmax(A^(T)) X         per client, over its slots     (Eq. 9-11)
    A^(S) = Q K^T / sqrt(D),  X^TSA = softmax(A^(S)) X^TA      per slot, over the clients     (Eq. 12-14)

Q and K are linear layers with bias, at first the identity; V is the identity and stays so. All layers live in one
tensor, the block[D + 1, 4 D]: columns temporal Q, K, spatial Q, K; the last row is the biases. Since rows of an
attention sum to one, X^TA W + b = softmax(A^(T)) (X W + b): X is projected once for all layers and both passes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Pairs(NamedTuple):
    """Something about all pairs of slots of a client [N, T, T] and all pairs of clients in a slot [T, N, N].

    A spatial mask of one slot [1, N, N] stands for all slots.
    """

    temporal: Tensor
    spatial: Tensor


class Attention(NamedTuple):
    """One pass through the block: softmaxed scores over time and over clients, X^TA[T, N, D] and X^TSA[T, N, D]."""

    scores: Pairs
    temporal: Tensor
    output: Tensor


def make_identity_block(x: Tensor, temporal: bool) -> Tensor:
    """All layers before training: identity weights and zero biases."""
    dim = x.shape[-1]
    return F.pad(torch.eye(dim, device=x.device, dtype=x.dtype).repeat(1, 4 if temporal else 2), (0, 0, 0, 1))


def find_visible(known: Tensor) -> Pairs:
    """Which keys a query may look at: those that arrived, and always itself (so that no softmax is empty)."""
    clients, slots = (torch.eye(n, dtype=torch.bool, device=known.device) for n in known.shape)
    return Pairs(known[:, None, :] | slots, known.T[:, None, :] | clients)


def attend_to_keys(layers: Tensor, seen: Tensor, keep: Tensor | None = None, hard: bool = False) -> Tensor:
    """softmax(Q K^T / sqrt(D)) over the keys seen (Eq. 10, 13); `keep` masks scores: to -inf (hard) or to 0."""
    q, k = layers.chunk(2, -1)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if keep is not None and hard:
        seen = seen & keep
    elif keep is not None:
        scores = scores * keep  # Eq. 16-17
    return scores.masked_fill(~seen, -torch.inf).softmax(-1)


def run_block(x: Tensor, projected: Tensor, seen: Pairs, keep: Pairs | None = None, hard: bool = False) -> Attention:
    """Attend over time, then over clients (Eq. 9-14; with masks `keep`, Eq. 16-17)."""
    *over_time, layers = projected.chunk(projected.shape[-1] // (2 * x.shape[-1]), -1)
    a = torch.eye(x.shape[1], device=x.device, dtype=x.dtype).expand(len(x), -1, -1)
    if over_time:
        a = attend_to_keys(over_time[0], seen.temporal, keep and keep.temporal, hard)
        x, layers = a @ x, a @ layers
    x = x.transpose(0, 1)
    s = attend_to_keys(layers.transpose(0, 1), seen.spatial, keep and keep.spatial, hard)
    return Attention(Pairs(a, s), x, s @ x)
