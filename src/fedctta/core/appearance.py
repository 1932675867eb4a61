"""What a batch of images looks like, in ten numbers that tell corruptions apart and classes hardly.

With l the mean over an image's channels, c the rest of every channel, and k_uv the nine products of the rows
(1 1 1) / sqrt 3, (1 0 -1) / sqrt 2 and (1 -2 1) / sqrt 6, down and across:

    e_uv = mean over pixels of (k_uv * l)^2, for u = v = 0 the variance instead           power at nine frequencies
    f_ab = sum_uv (k_ab)_uv log(e_uv + g^2)                                               a, b = 0, 1, 2
    f_9  = log(mean over pixels and channels of |grad c|^2 + g^2)                         how colours change

g is one grey level of 255. Logarithms of power are nearly normal over images, and using the rows again on their 3 x 3
table makes them nearly uncorrelated, so that a mean and a variance of each number say what a batch looks like and how
sure that is.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor
from torch.nn import functional as F

NUMBERS = 10
GREY = 1 / 255
ALONE = 1.0  # the variance over images that a single image is taken to show


def appearance(x: Tensor) -> Tensor:
    """Return f[B, 10] of images x[B, C, H, W] in [0, 1]."""
    light = x.mean(1)
    answers = waves(
        waves(F.pad(light.unsqueeze(1), (1, 1, 1, 1), mode="replicate").squeeze(1), 1), 3
    )  # [B, 3, H, 3, W]
    power = answers.square().mean((2, 4))
    steady = F.pad(answers[:, 0, :, 0].mean((1, 2)).square()[:, None, None], (0, 2, 0, 2))
    table = ((power - steady).clamp_min(0) + GREY**2).log()
    colour = x - light.unsqueeze(1)
    change = colour.diff(dim=3).square().sum((1, 2, 3)) + colour.diff(dim=2).square().sum((1, 2, 3))
    change = (change / x[0].numel() + GREY**2).log()
    return torch.cat([waves(waves(table, 1), 3).flatten(1), change.unsqueeze(1)], 1)


def waves(t: Tensor, dim: int) -> Tensor:
    """Answer the three rows along `dim` of length L + 2: a new axis of 3 before it, which is left with length L."""
    length = t.shape[dim] - 2
    a, b, c = (t.narrow(dim, start, length) for start in range(3))
    return torch.stack([(a + b + c) / sqrt(3), (a - c) / sqrt(2), (a - 2 * b + c) / sqrt(6)], dim)


def of_batch(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean[10] and variance[10] over the images of x[B, C, H, W]."""
    looks = appearance(x)
    return looks.mean(0), looks.var(0) if len(looks) > 1 else torch.full_like(looks[0], ALONE)
