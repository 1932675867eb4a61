"""Images mixed in pairs: mixup (Zhang et al., ICLR 2018) and CutMix (Yun et al., ICCV 2019), a batch at a time.

    mixup:   x_i <- s x_i + (1 - s) x_{i-1},                     s ~ Beta(0.8, 0.8)
    CutMix:  x_i <- x_i, with x_{i-1} in a box of area 1 - s,    s ~ U(0, 1)

and the loss is s L(y_i) + (1 - s) L(y_{i-1}). Batches are in random order, so the neighbour is a random image.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MIXUP = 0.8
"""Both parameters of mixup's Beta distribution."""


@dataclass(frozen=True)
class Pairing:
    """How the images of one batch are mixed: the first one's share, and for CutMix the box's centre in [0, 1)."""

    share: float
    centre: tuple[float, float] | None = None


WHOLE = Pairing(1.0)
"""Leaves images as they are."""


def draw_pairings(count: int, share: float, generator: torch.Generator) -> list[Pairing]:
    """Draw how `count` batches are mixed: each with probability `share`, by mixup or CutMix at even odds."""
    if share == 0:
        return [WHOLE] * count
    chance = torch.rand(count, 5, generator=generator).tolist()
    beta = np.random.default_rng(int(torch.randint(2**31, (), generator=generator))).beta(MIXUP, MIXUP, count)
    return [
        WHOLE if mixed >= share else Pairing(kept, (row, column)) if cut < 0.5 else Pairing(float(beta[k]))
        for k, (mixed, cut, kept, row, column) in enumerate(chance)
    ]


def mix_pairs(x: Tensor, pairing: Pairing) -> tuple[Tensor, float]:
    """Mix images [B, C, H, W] with their neighbours in the batch; return them and the share of the first one's label.

    A box that leaves the image is cut off, and what is left of it counts.
    """
    if pairing == WHOLE:
        return x, 1.0
    other = x.roll(1, 0)
    if pairing.centre is None:
        return torch.lerp(other, x, pairing.share), pairing.share
    height, width = x.shape[-2:]
    half = (1 - pairing.share) ** 0.5 / 2
    (top, bottom), (left, right) = (
        (max(0, round((centre - half) * side)), min(side, round((centre + half) * side)))
        for centre, side in zip(pairing.centre, (height, width), strict=True)
    )
    mixed = x.clone()
    mixed[..., top:bottom, left:right] = other[..., top:bottom, left:right]
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)
