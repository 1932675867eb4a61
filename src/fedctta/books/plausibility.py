"""Parts of books that cannot be true: a device that sends one is broken or lies, and all that it sent is refused.

What is checked of every part, apart from rounding:

    finite numbers; 0 <= scored, measured <= images; all images of a device together, and all versions, <= its time
    the variance of looks, square / images - (look / images)^2, is not below zero
    entropies are not below zero, nor are predicted probabilities, which sum to 1 for every weight
    z of all channels has a root mean square of at most 10, e of at most 100; the variance 1 + e - z^2 is not below zero
    no two parts of a device have the same name
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedctta.books.rows import Layout

BOUND = 10.0  # of z, in source deviations; honest parts have less than 2
ROUNDING = 1e-2
TINY = 1e-6


def find_possible(layout: Layout, rows: Tensor) -> Tensor:
    """Return which of rows[..., S] can be true; a row of zeros can."""
    counts = {name: layout.of(rows, name) for name in ("images", "scored", "measured")}
    seen = counts["images"]
    per = {name: count.clamp_min(TINY)[..., None] for name, count in counts.items()}
    fine = rows.isfinite().all(-1)
    for count in counts.values():
        fine &= (count >= 0) & (count <= seen * (1 + ROUNDING) + ROUNDING)
    look, square = layout.of(rows, "look") / per["images"], layout.of(rows, "square") / per["images"]
    fine &= (square - look.square() >= -ROUNDING * (1 + look.square())).all(-1)
    fine &= (layout.of(rows, "entropy") >= 0).all(-1)
    classes = layout.of(rows, "classes")
    fine &= (classes >= 0).flatten(-2).all(-1)
    fine &= ((classes.sum(-1) - counts["scored"][..., None]).abs() <= ROUNDING * (1 + seen[..., None])).all(-1)
    z, e = (layout.of(rows, "moments") / per["measured"]).chunk(2, -1)
    fine &= (z.square().mean(-1) <= BOUND**2) & (e.square().mean(-1) <= BOUND**4)
    fine &= (1 + e - z.square() >= -ROUNDING * (1 + z.square())).all(-1)
    return fine | (rows == 0).all(-1)


def find_honest(layout: Layout, rows: Tensor, names: Tensor, versions: Tensor, times: Tensor) -> Tensor:
    """Return which devices[N] have sent, at times[N], parts rows[N, K, S] that can be true.

    Parts have names[N, K] (0: there is none) and versions[N, K].
    """
    sent = names != 0
    fine = (find_possible(layout, rows) | ~sent).all(1)
    images = torch.where(sent, layout.of(rows, "images"), 0).sum(1)
    fine &= ~(images > times * (1 + ROUNDING) + ROUNDING) & ~(sent & (versions > times[:, None])).any(1)
    twice = (names[:, :, None] == names[:, None]) & sent[:, :, None]
    return fine & (twice.sum((1, 2)) == sent.sum(1)) & ~(sent & (versions <= 0)).any(1)
