"""Images dealt with skewed classes: each client its own skew, or the same rare classes for all."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

import numpy as np

from fedctta.errors import UserError
from fedctta.registry import MayBeInfinite
from fedctta.sampling import Indices, Sampler, by_proportions


@dataclass(frozen=True)
class Dirichlet(Sampler):
    """Give every client class proportions of its own, drawn from Dirichlet(delta): the smaller, the more skewed."""

    name: ClassVar[str] = "dirichlet"
    by_class: ClassVar[bool] = True
    delta: MayBeInfinite = 0.1

    def __post_init__(self) -> None:
        if not self.delta > 0:
            raise UserError(f"dirichlet.delta={self.delta} must be above 0 (inf: all classes alike)")

    def deal(self, labels: Indices, clients: int, need: int, rng: np.random.Generator) -> Indices:
        """q_i ~ Dirichlet(delta 1), then `need` images by q_i; clients draw independently and may share images."""
        classes = int(labels.max()) + 1
        if self.delta == inf:
            shares = np.full((clients, classes), 1 / classes)
        else:
            shares = rng.dirichlet(np.full(classes, self.delta), clients)
        return np.stack([by_proportions(labels, q, need, rng) for q in shares])


@dataclass(frozen=True)
class LongTail(Sampler):
    """Make some classes rare for everybody: the rarest is `ratio` times as frequent as the commonest."""

    name: ClassVar[str] = "longtail"
    by_class: ClassVar[bool] = True
    ratio: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise UserError(f"longtail.ratio={self.ratio} must lie above 0 and up to 1")

    def deal(self, labels: Indices, clients: int, need: int, rng: np.random.Generator) -> Indices:
        """q_k proportional to ratio^(rank of k / (K - 1)), ranks drawn once for all; clients may share images."""
        classes = int(labels.max()) + 1
        frequency = self.ratio ** (rng.permutation(classes) / max(1, classes - 1))
        return np.stack([by_proportions(labels, frequency / frequency.sum(), need, rng) for _ in range(clients)])
