"""The masks of FedTSA's second pass: pairs that are kept, drawn by their attention.

The paper draws every pair for itself, the published code masks of fixed size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.aggregators.fedtsa.attention import Attention, Pairs


def draw_bernoulli_masks(scores: Pairs, noise: Pairs) -> Pairs:
    """Keep every pair with the probability of its attention, and every client's tie to itself (the paper).

    The paper starts the spatial mask from the graph of Eq. 15, keeps its edges with probability a_ij and adds edges
    it lacks with probability a_ij: either way a pair is kept with a_ij, so the graph itself drops out.
    """
    loops = torch.eye(scores.spatial.shape[-1], dtype=torch.bool, device=scores.spatial.device)
    return Pairs(noise.temporal < scores.temporal, (noise.spatial < scores.spatial) | loops)


def draw_sized_masks(raw: Attention, noise: Pairs, known: Tensor) -> Pairs:
    """Masks of fixed size (the published code).

    Over time, 3/4 of a client's pairs are drawn by 1 - a and dropped, the diagonal excepted. Over clients, edges of
    the last slot's graph, cos(X^TA_i, X^TA_j) > mean: 4/5 of them drawn by 1 - a are dropped, and of the G absent ones
    int(G (1 - 0.8)) drawn by a are added; that mask serves all slots. As a float, 1 - 0.8 is just below 1/5, so that
    this is one less than G / 5 wherever 5 divides G: (G - 1) // 5.
    """
    a, s = raw.scores.temporal, raw.scores.spatial[-1]
    clients, slots = (torch.eye(n, dtype=torch.bool, device=known.device) for n in known.shape)
    pairs = known[:, :, None] & known[:, None, :]
    dropped = draw_sample(1 - a, pairs, 3 * pairs.sum((-2, -1)) // 4, noise.temporal)

    present = known[:, -1, None] & known[:, -1]
    unit = F.normalize(raw.temporal[-1], dim=-1)
    cosine = torch.where(present, unit @ unit.T, 0)
    near = cosine > cosine.sum() / present.sum()
    edges, gaps = near & present & ~clients, ~near & present & ~clients
    lost = draw_sample(1 - s, edges, 4 * edges.sum() // 5, noise.spatial[0])
    added = draw_sample(s, gaps, (gaps.sum() - 1) // 5, noise.spatial[1])  # without gaps it is -1, which draws none
    return Pairs(~dropped | slots, ((edges & ~lost) | added | clients)[None])


def draw_sample(weight: Tensor, among: Tensor, count: Tensor, noise: Tensor) -> Tensor:
    """Draw `count` of the entries `among` a matrix without replacement, with probability proportional to `weight`.

    An exponential race: entry e finishes at Exp(1) / weight_e, and the first `count` are drawn.
    """
    time = -torch.log1p(-noise) / weight.clamp_min(1e-30)
    order = time.masked_fill(~among, torch.inf).flatten(-2).argsort(-1)
    first = torch.arange(order.shape[-1], device=order.device) < count[..., None]
    return torch.zeros_like(first).scatter(-1, order, first).view_as(among)
