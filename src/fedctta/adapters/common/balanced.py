"""Balanced batch normalisation: statistics in which every class has the same weight, however frequent it is.

A layer keeps a mean mu_k and a variance s_k for each class k. A batch with features F_b and (pseudo-)labels y_b moves
those of the classes it contains; <.> is the mean over positions, n_k the number of images of class k:

    m_k     = eta, or 1 / n_k where that is less                 (so that a class never overshoots)
    delta_k = m_k sum_{b: y_b = k} <F_b - mu_k>
    mu_k   += (1 - gamma) delta_k
    s_k    += (1 - gamma) (m_k sum_{b: y_b = k} (<(F_b - mu_k)^2> - s_k) - delta_k^2)        mu_k as before

(pFedBBN Eq. 1-3, with d read as the number of positions; gamma = 0 there). A share gamma of the mean movement of the
classes present goes to all classes, present or not (TRIBE). The layer normalises with what balanced classes give,

    mu = mean_k mu_k,      var = mean_k s_k + Var_k(mu_k)                                     (Eq. 4)

with Var_k over K classes, or with divisor K - 1 as TRIBE's code has it (`correction=1`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedctta.adapters.common.fused_balance import balance_fused, can_fuse_balance
from fedctta.core.moments import moments
from fedctta.core.network import Network, Tensors
from fedctta.core.norms import NormRule, Statistics
from fedctta.errors import UserError


class Rates(NamedTuple):
    """Which images are of which class, members[K, B], and of every class[K, 1] n_k, m_k and m_k n_k."""

    members: Tensor
    size: Tensor
    m: Tensor
    share: Tensor


def source_buffers(network: Network, classes: int) -> Tensors:
    """Return the statistics of every layer and class before the first batch: the source's."""
    return {
        f"balanced.{layer}.{kind}": network.state[f"{layer}.running_{kind}"].repeat(classes, 1)
        for layer in network.norms
        for kind in Statistics._fields
    }


def balanced(
    buffers: Tensors, after: Tensors, labels: Tensor, eta: float, gamma: float = 0.0, correction: int = 0
) -> NormRule:
    """Normalise with, and keep, balanced statistics after this batch of one-hot labels[B, K].

    Those of the classes are read from `buffers` and their new values put into `after`, by name.
    """
    rates = find_rates(labels, eta)

    def rule(name: str, x: Tensor, old: Statistics) -> tuple[Statistics, Statistics]:
        mean, var = f"balanced.{name}.mean", f"balanced.{name}.var"
        if mean in after:
            raise UserError(f"layer {name!r} is called twice, and bbn keeps class statistics of one call: use bn")
        before, images = Statistics(buffers[mean], buffers[var]), image_statistics(x)
        if not gamma and can_fuse_balance(images.mean):
            classes, now = balance_fused(images, before, rates.members, rates.m, correction)
        else:
            classes = move_statistics(before, images, rates, gamma)
            now = over_classes(classes, correction)
        after[mean], after[var] = classes
        return now, now

    return rule


def image_statistics(x: Tensor) -> Statistics:
    """Mean[B, C] and biased variance[B, C] of every image and channel of x[B, C, ...] over its positions."""
    if x.dim() == 2:
        return Statistics(x, torch.zeros_like(x))
    return Statistics(*moments(x, tuple(range(2, x.dim()))))


def find_rates(labels: Tensor, eta: float) -> Rates:
    """Return by how much a batch of one-hot labels[B, K] moves the statistics of its classes."""
    size = labels.sum(0)[:, None]
    m = torch.where(size > 1 / eta, 1 / size.clamp_min(1), eta)
    return Rates(labels.T, size, m, m * size)


def move_statistics(classes: Statistics, images: Statistics, rates: Rates, gamma: float = 0.0) -> Statistics:
    """Return the statistics[K, C] of the classes after images[B, C]."""
    members, size, m, share = rates
    # Relative to the classes' common mean, which keeps the squares below from cancelling each other's digits.
    centre = classes.mean.mean(0)
    offset, distance = classes.mean - centre, images.mean - centre
    first, second = (members @ torch.cat([distance, torch.addcmul(images.var, distance, distance)], 1)).chunk(2, 1)
    delta = m * torch.addcmul(first, size, offset, value=-1)
    square = torch.addcmul(torch.addcmul(second, offset, first, value=-2), size, offset.square())
    gap = torch.addcmul(m * square, delta, delta, value=-1)

    mean = torch.add(classes.mean, delta, alpha=1 - gamma)
    var = torch.add(classes.var, torch.addcmul(gap, share, classes.var, value=-1), alpha=1 - gamma)
    if gamma:
        present = (size > 0).sum().clamp_min(1)  # whatever is summed here is 0 for a class that is absent
        mean = mean + gamma * delta.sum(0) / present
        var = var + gamma * (gap.sum(0) - share.sum() * var) / present
    return Statistics(mean, var.clamp_min(0))


def over_classes(classes: Statistics, correction: int = 0) -> Statistics:
    """Return the statistics[C] of a mixture of the classes in equal parts."""
    between, mean = torch.var_mean(classes.mean, dim=0, correction=correction)
    return Statistics(mean, classes.var.mean(0) + between)
