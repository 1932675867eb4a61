"""Losses on unlabelled predictions, each a value for every image of the batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def entropy(logits: Tensor) -> Tensor:
    """H(p) = - sum_k p_k log p_k of p = softmax(logits), in nats."""
    log_p = F.log_softmax(logits, dim=-1)
    return -(log_p.exp() * log_p).sum(-1)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """- sum_k softmax(target)_k log softmax(logits)_k: how far predictions are from those of another model."""
    return -(F.softmax(target, dim=-1) * F.log_softmax(logits, dim=-1)).sum(-1)


def symmetric_cross_entropy(logits: Tensor, other: Tensor) -> Tensor:
    """Half the cross-entropy in one direction and half in the other."""
    return (cross_entropy(logits, other) + cross_entropy(other, logits)) / 2


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine along the last axis."""
    return F.cosine_similarity(a, b, dim=-1, eps=torch.finfo(a.dtype).tiny)
