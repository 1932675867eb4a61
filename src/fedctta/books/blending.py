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

from fedctta.books.rows import Scale
from fedctta.core.norms import Blended


class Blend(NamedTuple):
    """sum_k c_k Z_k [2 D], and B sum_k c_k, the weight of the batch."""

    known: Tensor
    batch: Tensor


def normalise_with(scale: Scale, blend: Blend) -> Blended:
    """Return the rule that normalises with a blend and keeps the statistics of the batch.

    It gives s z + B c d and s^2 e + B c (v + d^2 - source var), with d = m - source mean, in few operations.
    """
    half, b = len(scale.mean), blend.batch
    shift = scale.deviation * blend.known[:half]
    rest = torch.addcmul(scale.var * (1 - b), scale.square, blend.known[half:])
    layers = zip(*(torch.split(part, list(scale.widths), -1) for part in (shift, rest, scale.least)), strict=True)
    return Blended(dict(zip(scale.names, layers, strict=True)), b)
