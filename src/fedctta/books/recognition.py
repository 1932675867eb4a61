"""Which of the domains in a book a batch is of: a forward filter over the look of batches.

A batch of B images has the mean look s. Domain k has n_k images with mean look l_k and variance w_k, pulled to the
usual variance w as if by ten images, and not below a floor (pictures without colour have none in that number):

    log b(k) = log prior(k) - 1/2 sum_d [ (s - l_k)_d^2 / (w_kd E_k) + log(w_kd / w_d) + log E_k ]
    E_k = 1/B + 1/n_k + tolerance
    log b(0) = log prior(0) - 1/2 * 12 log(strange), or log(4 strange) for a single image      a domain not met
    prior = (1 - hazard) b + hazard / (number of domains + 1)

The look of a single image is no mean, and strays farther. `tolerance` limits the evidence to that of 1/tolerance
images, for batches of one domain with different classes. Two domains with n and m images turn out to be one (`same`) if

    sum_d (l_n - l_m)_d^2 / (w_d E) < 12 log(strange / E),    E = min(1/n + 1/m, 2/TWINS) + tolerance

Few images fit many domains, and what was once added up cannot be parted again. So looks of fewer than `TWINS` images
have to be as near as those of `TWINS` would be: most such domains wait until they have been seen more often.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.books.rows import Layout
from fedctta.core.appearance import NUMBERS

FLOOR, LEAST = 0.05, 1e-3  # of a variance, in usual ones; and of a usual one
PULL = 10.0  # images that the usual variance is worth
TWINS = 100  # images from which on looks tell whether two domains are one
SINGLE = 4.0  # times as strange must a single image be
TINY = 1e-8


@dataclass(frozen=True)
class Recogniser:
    """The constants of the filter."""

    hazard: float = 0.1
    tolerance: float = 0.01
    strange: float = 5.0

    def update(self, belief: Tensor, look: Tensor, images: float, domains: Looks, usual: Tensor) -> Tensor:
        """Return b[K + 1], the unknown domain last, after a batch with this mean look[12]."""
        n = domains.images
        width = domains.widths(usual)
        error = 1 / images + self.tolerance + n.clamp_min(1).reciprocal()
        apart = ((look - domains.mean).square() / width).sum(-1)
        misfit = apart / error + (width / usual.clamp_min(LEAST)).log().sum(-1) + NUMBERS * error.log()
        there = F.pad(n > 0, (0, 1), value=True)
        prior = (1 - self.hazard) * belief + self.hazard * there / there.sum()
        evidence = torch.cat([-0.5 * misfit, misfit.new_full((1,), -self.against_unknown(images))])
        return torch.where(there, prior.clamp_min(TINY).log() + evidence, -torch.inf).softmax(0)

    def against_unknown(self, images: float) -> float:
        """Return the evidence against a domain not met."""
        return 0.5 * NUMBERS * log(self.strange * (SINGLE if images == 1 else 1))

    def same(self, one: Looks, other: Looks, usual: Tensor) -> Tensor:
        """Return [K, L]: the log-odds that two domains with these looks are one; -inf where either is empty."""
        width = one.widths(usual)[:, None] / 2 + other.widths(usual)[None] / 2
        n, m = one.images[:, None], other.images[None]
        chance = n.clamp_min(1).reciprocal() + m.clamp_min(1).reciprocal()
        error = chance.clamp_max(2 / TWINS) + self.tolerance
        apart = ((one.mean[:, None] - other.mean[None]).square() / width).sum(-1)
        odds = 0.5 * (NUMBERS * log(self.strange) - apart / error - NUMBERS * error.log())
        return torch.where((n > 0) & (m > 0), odds, -torch.inf)


@dataclass(frozen=True)
class Looks:
    """What domains look like: images n[K], the mean[K, 12] of their numbers, and their variance[K, 12]."""

    images: Tensor
    mean: Tensor
    var: Tensor

    @staticmethod
    def read(layout: Layout, rows: Tensor) -> Looks:
        """Return the looks that rows[K, S] hold."""
        n = layout.of(rows, "images")
        count = n.clamp_min(TINY)[:, None]
        mean = layout.of(rows, "look") / count
        return Looks(n, mean, layout.of(rows, "square") / count - mean.square())

    def widths(self, usual: Tensor) -> Tensor:
        """Return the variances pulled to the usual one[12], not below the floor."""
        n, usual = self.images[:, None], usual.clamp_min(LEAST)
        return ((n * self.var + PULL * usual) / (n + PULL)).maximum(FLOOR * usual)
