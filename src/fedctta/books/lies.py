"""What a lying device says of its domains: looks and counts are true, so that its parts are believed; moments are not.

With z and e the means of moments in a row (see `rows`; v = 1 + e - z^2 is the variance in source variances):

    sign          z -> -z, v -> 2 - v, not below zero; what it scored with weight a is said of 1 - a
    scale         z -> 100 z, e -> 100 e
    random        z and v - 1 standard normal, v not below zero
    statistics    z -> z + 5: every channel's mean off by five source deviations, and the variance true
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedctta.books.rows import Layout
from fedctta.core.randomness import fork, normal
from fedctta.keys import Lie

SCALE = 100.0
SHIFT = 5.0
TINY = 1e-6


def tell_lie(lie: Lie, rows: Tensor, key: Tensor, channels: int) -> Tensor:
    """Return rows[..., S] with a lie instead of their moments; empty rows stay empty."""
    layout, told = Layout(channels, rows.shape[-1] - Layout(channels).width), rows.clone()
    count = layout.of(rows, "measured")[..., None]
    z, e = (layout.of(rows, "moments") / count.clamp_min(TINY)).chunk(2, -1)
    var = 1 + e - z.square()
    if lie == "scale":
        false = torch.cat([SCALE * z, SCALE * e], -1)
    elif lie == "random":
        false = encode(normal(fork(key, 0), z.shape), 1 + normal(fork(key, 1), z.shape))
    elif lie == "statistics":
        false = encode(z + SHIFT, var)
    else:
        false = encode(-z, 2 - var)
        for name in ("doubt", "unusual"):
            layout.of(told, name).copy_(layout.of(rows, name).flip(-1))
    told[..., layout.parts["moments"]] = count * false
    return told


def encode(z: Tensor, var: Tensor) -> Tensor:
    """Return z and e side by side, of means and variances in units of the source's."""
    return torch.cat([z, var.clamp_min(0) + z.square() - 1], -1)
