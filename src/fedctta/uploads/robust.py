"""Mixing that a few broken or lying clients cannot spoil. Works on any aggregator's W, on N stacked uploads.

Every way except `none` first refuses uploads that cannot be true: numbers that are not finite, negative variances, a
tensor of n numbers with ||theta|| > bound (||source|| + sqrt(n)), and signals with a number beyond 10^15 in size: there
is no source to compare them with, and sums of their squares must stay finite. A refused client keeps its model and has
no weight.

    check      no more than that
    cap        W_ij <= cap for peers j; the excess is added to W_ii
    clip       theta_j <- m + (theta_j - m) min(1, clip d / ||theta_j - m||) for every tensor, with m the median of all
               uploads, number by number, and d the median of their distances to it; signals in the same way, but
               where d = 0 (most say yes, some no) there is no scale, and they stay unchanged. A client's own share of
               its mixture is its own model, not clipped
    median     every number of client i's mixture is the weighted median of the uploads' numbers, weights W_i
    trimmed    their weighted mean, the share `trim` of the weight left out at either end

Only row i of W decides for client i, so a client without similar peers does not get the majority's values. If more than
half of W_i is on client i itself, the median is its own model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedctta.aggregators import Aggregator, Server, Uploads
from fedctta.aggregators.common.mixing import Mixing, Weights, each, matrix, mix, of_tensor
from fedctta.aggregators.common.neighbours import Neighbours
from fedctta.core.network import Tensors
from fedctta.core.tensors import choose_rows
from fedctta.errors import UserError
from fedctta.keys import Way
from fedctta.uploads.stages import Transit

BOUND = 10.0
LARGEST = 1e15
"""What no number of a signal exceeds: honest ones are features, looks of batches, and counts of images or seconds."""
NEARLY_ALL = 0.499  # trimmed by this share at either end, a mean is a median (the mean of two middle values)
NUMBERS_AT_ONCE = 2**22


@dataclass(frozen=True)
class Robust:
    """How uploads are admitted and mixed; `none` trusts all of them."""

    way: Way = "none"
    cap: float = 0.2
    clip: float = 2.0
    trim: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.cap <= 1:
            raise UserError(f"cap={self.cap} must lie above 0 and up to 1: it is the most that one peer may weigh")
        if not 0 < self.clip < float("inf"):
            raise UserError(f"clip={self.clip} must be above 0: it counts median distances, say 2")
        if not 0 <= self.trim < 0.5:
            raise UserError(f"trim={self.trim} must be at least 0 and below 0.5: it is left out at either end")

    def check(self, aggregator: Aggregator, measured: bool) -> None:
        """Refuse a way that would have no effect on this aggregator; `measured`: see `Adapter.measures`."""
        if self.way != "none" and aggregator.guarded:
            raise UserError(
                f"robust={self.way} has no effect on {aggregator.name}, which refuses and clips uploads by itself"
                f" ({aggregator.name}.{aggregator.guarded}): leave robust out"
            )
        if self.way in ("cap", "median", "trimmed") and not aggregator.mixes(measured):
            raise UserError(
                f"robust={self.way} has no effect on {aggregator.name}, whose server sends what it remembers and not a"
                " mixture of uploads: use robust=clip or check"
            )

    def handle(self, server: Server, transit: Transit) -> Transit:
        """Leave out what cannot be true, and clip what is left if asked to."""
        if self.way == "none":
            return transit
        uploads, sent, receive = self.admit(transit.uploads, transit.receive, server.network.state)
        return transit._replace(uploads=uploads, sent=sent, receive=receive)

    def admit(self, uploads: Uploads, receive: Tensor, source: Tensors) -> tuple[Uploads, Tensors, Tensor]:
        """Return the uploads that count, their tensors as sent, and who receives; refused uploads are left out."""
        fine = plausible(uploads, source)
        uploads = without(uploads, ~fine, source)
        sent, active = uploads.own, uploads.active
        if self.way == "clip":
            own = {name: clipped(tensor, active, self.clip) for name, tensor in sent.items()}
            signals = {n: clipped(signal, active, self.clip, exact=False) for n, signal in uploads.signals.items()}
            uploads = uploads._replace(own=own, signals=signals)
        return uploads, sent, receive & fine

    def limit(self, weights: Mixing) -> Mixing:
        """Return W with no peer above the cap."""
        return each(weights, lambda w: capped(w, self.cap)) if self.way == "cap" else weights

    def mix(self, weights: Mixing, own: Tensors, sent: Tensors) -> Tensors:
        """Mix what was admitted; `sent` is the same before clipping."""
        if self.way in ("median", "trimmed"):
            return trimmed(weights, own, 0.5 if self.way == "median" else self.trim)
        mixed = mix(weights, own)
        if self.way == "clip":
            return {name: t + _own_share(weights, name, t) * (sent[name] - own[name]) for name, t in mixed.items()}
        return mixed


def plausible(uploads: Uploads, source: Tensors, bound: float = BOUND) -> Tensor:
    """Return which uploads[N] can be true, judged by their numbers only."""
    fine = torch.ones_like(uploads.active)
    for name, tensor in uploads.own.items():
        rows, n = tensor.reshape(len(tensor), -1), tensor[0].numel()
        fine = fine & (rows.norm(dim=1) <= bound * (source[name].norm() + n**0.5))  # nan and inf are not below
        if name.endswith("running_var"):
            fine = fine & (rows >= 0).all(1)
    for signal in uploads.signals.values():
        if signal.is_floating_point():
            fine = fine & (signal.reshape(len(signal), -1).abs() <= LARGEST).all(1)
    return fine


def without(uploads: Uploads, refused: Tensor, source: Tensors) -> Uploads:
    """Return the uploads as if the refused ones had not arrived: rows of the source model, without weight."""
    own = {name: choose_rows(refused, source[name].expand_as(tensor), tensor) for name, tensor in uploads.own.items()}
    signals = {name: choose_rows(refused, torch.zeros_like(s), s) for name, s in uploads.signals.items()}
    trust = uploads.active.float() if uploads.trust is None else uploads.trust
    return Uploads(own, signals, uploads.active & ~refused, uploads.domain, torch.where(refused, 0, trust))


def capped(weights: Weights, cap: float) -> Weights:
    """Return W with peers' weights of at most `cap`; the excess goes back to oneself."""
    if isinstance(weights, Neighbours):
        peers = weights.weight[:, 1:].clamp_max(cap)
        return Neighbours(weights.who, torch.cat([1 - peers.sum(1, keepdim=True), peers], 1))
    dense = matrix(weights)
    oneself = torch.eye(len(dense), dtype=torch.bool, device=dense.device)
    peers = dense.clamp_max(cap).masked_fill(oneself, 0)
    return peers + torch.diag(1 - peers.sum(1))


def clipped(stack: Tensor, active: Tensor, factor: float, exact: bool = True) -> Tensor:
    """Pull rows of stack[N, ...] that are far from the median to `factor` times the median distance from it.

    If that is 0, all rows become the median, or, unless `exact`, stay as they are.
    """
    if not stack.is_floating_point():
        return stack
    rows = stack.reshape(len(stack), -1)
    middle = rows.masked_fill(~active[:, None], torch.nan).nanmedian(0).values
    apart = rows - middle
    distance = apart.norm(dim=1, keepdim=True)
    most = factor * distance.masked_fill(~active[:, None], torch.nan).nanmedian()
    most = most if exact else torch.where(most > 0, most, torch.inf)
    near = middle + apart * (most / distance)
    return torch.where(active[:, None] & (distance > most), near, rows).view_as(stack)


def trimmed(weights: Mixing, own: Tensors, share: float) -> Tensors:
    """Give client i, number by number, the mean of the uploads weighted by W_i, `share` of it cut off at either end.

    With the numbers in order and c_k the weight up to the k-th, that one counts the part of [c_(k-1), c_k] that lies in
    [share, 1 - share]. A share above `NEARLY_ALL` is taken as that: nearer to 1/2, the rest may be lost in rounding.
    """
    share = min(share, NEARLY_ALL)

    def one(name: str, tensor: Tensor) -> Tensor:
        w = of_tensor(weights, name)
        rows = tensor.reshape(len(tensor), -1)
        who, weight = (w.who, w.weight) if isinstance(w, Neighbours) else (None, matrix(w))
        ranked = rows.sort(dim=0) if who is None else None  # the same for every receiver
        step = max(1, NUMBERS_AT_ONCE // max(1, weight.shape[1] * rows.shape[1]))
        parts = []
        for start in range(0, len(rows), step):
            here = slice(start, start + step)
            if ranked is not None:
                values, counts = ranked.values, weight[here][:, ranked.indices]
            else:
                values, order = rows[who[here]].sort(dim=1)  # type: ignore[index]
                counts = weight[here].unsqueeze(-1).expand_as(values).gather(1, order)
            parts.append(_inner_mean(values, counts, share))
        return torch.cat(parts).view_as(tensor)

    return {name: one(name, tensor) for name, tensor in own.items()}


def _inner_mean(values: Tensor, counts: Tensor, share: float) -> Tensor:
    """Mean of values[(R,) K, P] in ascending order, counted by counts[R, K, P], without `share` at either end."""
    upto = counts.cumsum(1)
    upto = (upto / upto[:, -1:]).clamp(share, 1 - share)
    inside = torch.cat([upto[:, :1] - share, upto.diff(dim=1)], 1)
    return (inside * values).sum(1) / inside.sum(1)  # 1 - 2 share, apart from rounding, which a median would show


def _own_share(weights: Mixing, name: str, like: Tensor) -> Tensor:
    return of_tensor(weights, name).diagonal().view(-1, *[1] * (like.dim() - 1))
