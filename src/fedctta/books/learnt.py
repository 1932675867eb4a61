"""What is learnt by domain: d_k, scales and shifts less the source's, as a sum over images in every row (`rows`)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedctta.books.recognition import TINY
from fedctta.books.rows import Layout
from fedctta.core.network import Tensors


def read_learnt(layout: Layout, private: Tensors) -> Tensor:
    """Return d[K, P]: what the device has learnt in every domain, or else what others have."""
    trained, theirs = (layout.of(private[rows], "trained")[:, None] for rows in ("part", "book"))
    own = layout.of(private["part"], "learnt") / trained.clamp_min(TINY)
    received = private["held"][:, None] * layout.of(private["book"], "learnt") / theirs.clamp_min(TINY)
    return torch.where(trained > 0, own, received)


def note_step(layout: Layout, private: Tensors, learnt: Tensor, belief: Tensor, step: Tensor) -> Tensors:
    """Return the private tensors with d_k <- d_k + b(k) step where b(k) > 0, given d before the batch."""
    heed, columns = belief[:, None], layout.parts["learnt"]
    kept, trained = private["part"][:, columns], layout.of(private["part"], "trained")[:, None]
    now = torch.where(heed > 0, trained * (learnt + heed * step), kept)
    return private | {"part": torch.cat([private["part"][:, : columns.start], now], 1)}


def average(layout: Layout, private: Tensors) -> Tensors:
    """Return the private tensors with d_k averaged with what others have learnt, by the images it was learnt on."""
    trained, theirs = (layout.of(private[rows], "trained")[:, None] for rows in ("part", "book"))
    theirs = theirs * private["held"][:, None]
    both = layout.of(private["part"], "learnt") + private["held"][:, None] * layout.of(private["book"], "learnt")
    mean = both / (trained + theirs).clamp_min(TINY)
    part = torch.cat([private["part"][:, : layout.parts["learnt"].start], trained * mean], 1)
    return private | {"part": part}
