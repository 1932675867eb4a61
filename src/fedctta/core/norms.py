"""Statistics of BatchNorm layers, and the rules that say which of them a pass uses and keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedctta.core.fused_norms import blend_plain
from fedctta.core.moments import moments


class Statistics(NamedTuple):
    """Mean and variance of every channel at one BatchNorm layer."""

    mean: Tensor
    var: Tensor


# Given a layer's name, its input and its stored statistics: those to normalise with, and those to keep.
NormRule = Callable[[str, Tensor, Statistics], tuple[Statistics, Statistics]]


def stored(name: str, x: Tensor, old: Statistics) -> tuple[Statistics, Statistics]:
    """Normalise with the stored statistics, as `model.eval()` does."""
    return old, old


@dataclass(frozen=True)
class ByBatch:
    """The rule that normalises with the batch's statistics, and keeps what is made of the old ones and these."""

    keep: Callable[[Tensor, Statistics, Statistics], Statistics]

    def __call__(self, name: str, x: Tensor, old: Statistics) -> tuple[Statistics, Statistics]:
        """Return the batch's statistics, and those to keep."""
        batch = batch_statistics(x)
        return batch, self.keep(x, old, batch)


def refreshed(momentum: float = 1.0) -> NormRule:
    """Normalise with, and keep, (1 - a) old + a batch (FedCTTA Eq. 3-4); a = 1 is the batch alone."""
    if momentum == 1:
        return ByBatch(lambda x, old, batch: batch)

    def rule(name: str, x: Tensor, old: Statistics) -> tuple[Statistics, Statistics]:
        new = blend(old, batch_statistics(x), momentum)
        return new, new

    return rule


def training(momentum: float | Tensor = 0.1) -> NormRule:
    """Normalise with the batch and keep a running average, as `model.train()` does (unbiased variance kept)."""

    def keep(x: Tensor, old: Statistics, batch: Statistics) -> Statistics:
        count = x.numel() // x.shape[1]
        unbiased = Statistics(batch.mean, batch.var * (count / max(count - 1, 1)))
        return blend(old, unbiased, momentum)

    return ByBatch(keep)


def weighted(weights: Tensor) -> NormRule:
    """Normalise with the batch's statistics, images counted by weights[B], and keep the stored ones.

    With weights 0 and 1 these are the statistics of a part of the batch; a batch of weight 0 counts as a whole.
    """

    def rule(name: str, x: Tensor, old: Statistics) -> tuple[Statistics, Statistics]:
        return batch_statistics(x, weights), old

    return rule


@dataclass(frozen=True)
class Blended:
    """The rule that normalises with what a share b of the batch makes of stored statistics, and keeps the batch's.

    `terms` are shift, rest and least of every layer, see `fused_norms: blend_plain`.
    """

    terms: Mapping[str, tuple[Tensor, Tensor, Tensor]]
    share: Tensor

    def __call__(self, name: str, x: Tensor, old: Statistics) -> tuple[Statistics, Statistics]:
        """Return the blend, and the batch's statistics."""
        batch = batch_statistics(x)
        return Statistics(*blend_plain(*batch, old.mean, *self.terms[name], self.share)), batch


def batch_statistics(x: Tensor, weights: Tensor | None = None) -> Statistics:
    """Mean and biased variance of every channel of x[B, C, ...], images counted by weights[B]."""
    over = tuple(d for d in range(x.dim()) if d != 1)
    if weights is None:
        return Statistics(*moments(x, over))
    share = torch.where(weights.sum() > 0, weights, 1)
    share = (share / share.sum()).view(-1, *[1] * (x.dim() - 1)) / (x.numel() // (x.shape[0] * x.shape[1]))
    mean = (share * x).sum(over)
    centred = x - mean.view(-1, *[1] * (x.dim() - 2))
    return Statistics(mean, (share * centred.square()).sum(over))


def blend(old: Statistics, new: Statistics, weight: float | Tensor) -> Statistics:
    """Return (1 - weight) old + weight new, in the precision of the new: a model of 16 bits is measured in float32."""
    return Statistics(*(torch.lerp(a.to(b.dtype), b, weight) for a, b in zip(old, new, strict=True)))
