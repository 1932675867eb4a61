"""The statistics that a batch is normalised with: those of its domains, its own, and the source's.

With b(k) the belief, a_k the weight of domain k (see `weights`), n_k its measured images, Z_k its sums of moments, B
images in the batch with the moments y at this layer, and p images that the source is worth:

    c_k = b(k) a_k / (n_k + B + p)                        n_0 = 0 and Z_0 = 0 for the unknown domain
    (z, e) = sum_k c_k (Z_k + B y)
    mean = source mean + s z,    var = source var + s^2 (e - z^2)

so that what is not covered by domain or batch is the source's, and a_k = 0 is the source model. For one domain this is
the blend mean = (1 - a) source + a domain, var = (1 - a) source + a domain + a (1 - a) (difference of means)^2.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedctta.books.rows import SMALLEST, Scale
from fedctta.core.norms import NormRule, Statistics, batch_statistics

LEAST = 1e-4  # of the source's variance: noise and rounding may carry a variance below zero


class Blend(NamedTuple):
    """sum_k c_k Z_k [2 D], and B sum_k c_k, the weight of the batch."""

    known: Tensor
    batch: Tensor


def normalise_with(scale: Scale, blend: Blend) -> NormRule:
    """Return the rule that normalises with a blend and keeps the statistics of the batch."""
    half = len(scale.mean)
    z, e = (torch.split(part, list(scale.widths), -1) for part in (blend.known[:half], blend.known[half:]))
    place = {name: k for k, name in enumerate(scale.names)}

    def rule(name: str, x: Tensor, source: Statistics) -> tuple[Statistics, Statistics]:
        k, batch = place[name], batch_statistics(x)
        square = source.var + SMALLEST
        s = square.sqrt()
        apart = batch.mean - source.mean
        first = z[k] * s + blend.batch * apart
        second = e[k] * square + blend.batch * (batch.var + apart.square() - source.var)
        var = (source.var + second - first.square()).maximum(LEAST * source.var)
        return Statistics(source.mean + first, var), batch

    return rule
