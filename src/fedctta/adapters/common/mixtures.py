"""Mixtures of domain vectors: weights p = softmax(s alpha) over the source (its vector is 0) and stored vectors.

With theta = source + sum_i p_i v_i + epsilon and g the gradient of a loss in theta, the gradients in the others are

    epsilon: g        alpha_i: s p_i (v_i - sum_j p_j v_j) . g        s: sum_i alpha_i p_i (v_i - sum_j p_j v_j) . g

Vectors lie in several tensors[K, P], which are never laid side by side; entry 0 is the source. Entries that are not
`there` weigh nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

LARGEST = 10.0  # of alpha


def weigh(alpha: Tensor, scale: Tensor, there: Tensor) -> Tensor:
    """Return p[E], the weight of every entry; the source must be there."""
    return _scores(alpha, scale, there).softmax(0)


def combine(weights: Tensor, *vectors: Tensor) -> Tensor:
    """Return sum_i p_i v_i of vectors[K, P]."""
    first, parts = 1, []
    for some in vectors:
        parts.append(weights[first : first + len(some)] @ some)
        first += len(some)
    return torch.stack(parts).sum(0)


def find_slopes(
    gradient: Tensor, weights: Tensor, alpha: Tensor, scale: Tensor, *vectors: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients in alpha[E] and in the scale."""
    along = F.pad(torch.cat([some @ gradient for some in vectors]), (1, 0))
    centred = weights * (along - (weights * along).sum())
    return scale * centred, (alpha * centred).sum()


def step_sign(value: Tensor, gradient: Tensor, lr: float, decay: float) -> Tensor:
    """Take the first step of AdamW: x (1 - lr decay) - lr g / (|g| + 1e-8)."""
    return value * (1 - lr * decay) - lr * gradient / (gradient.abs() + 1e-8)


def weigh_new(alpha: Tensor, scale: Tensor, there: Tensor, size: Tensor, margin: float) -> Tensor:
    """Return the alpha of a vector that is added when epsilon has this size (CoLA Eq. 8).

    The new vector contains epsilon, so its weight is to be 1 - margin / size: then what is left in epsilon is of the
    size of the margin. Its score s alpha is no less than any other's, and alpha between -10 and 10.
    """
    scores = _scores(alpha, scale, there)
    excess = (size / margin - 1).clamp_min(torch.finfo(size.dtype).tiny)
    score = torch.maximum(scores.logsumexp(0) + excess.log(), scores.max())
    return (score / torch.where(scale.abs() < 1e-6, 1e-6, scale)).clamp(-LARGEST, LARGEST)


def weigh_by_distance(distance: Tensor, there: Tensor, temperature: float) -> Tensor:
    """Return softmax_i(1 / (T (distance_i + 1e-4))) over those that are there; all 0 if none is."""
    closeness = 1 / (distance + 1e-4) / temperature
    scores = torch.where(there, closeness, torch.where(there.any(), -torch.inf, 0.0))
    return scores.softmax(0) * there


def _scores(alpha: Tensor, scale: Tensor, there: Tensor) -> Tensor:
    return torch.where(there, alpha * scale, -torch.inf)
