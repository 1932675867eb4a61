"""Images dealt with skewed classes: each client its own skew, or the same rare classes for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedctta.errors import UserError
from fedctta.ranges import Count, PositiveShare, Range
from fedctta.registry import MayBeInfinite
from fedctta.sampling import Indices, Sampler, by_proportions


class Skewed(Sampler):
    """Images dealt by class proportions; clients draw independently and may share images."""

    by_class: ClassVar[bool] = True

    def proportions(self, classes: int, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return q[clients, classes], the proportions in which every client sees the classes."""
        raise TypeError(f"{type(self).__name__} must define proportions")

    def deal(self, labels: Indices, clients: int, need: int, rng: np.random.Generator) -> Indices:
        """Draw q, then `need` images by q_i for every client."""
        shares = self.proportions(int(labels.max()) + 1, clients, rng)
        return np.stack([by_proportions(labels, q, need, rng) for q in shares])

    def deal_domains(
        self, labels: Sequence[Indices], classes: int, clients: int, most: int, rng: np.random.Generator
    ) -> list[list[Indices]]:
        """Draw q once for all domains; where one has no image of a class, the others take its part."""
        shares = self.proportions(classes, clients, rng)
        dealt = []
        for each in labels:
            there = np.bincount(each, minlength=classes) > 0
            mine = shares * there + 1e-12 * there  # all alike where a client has a liking for none of those there
            mine /= mine.sum(1, keepdims=True)
            dealt.append([by_proportions(each, q, min(most, len(each)), rng) for q in mine])
        return dealt


@dataclass(frozen=True)
class Dirichlet(Skewed):
    """Give every client class proportions of its own, drawn from Dirichlet(delta): the smaller, the more skewed."""

    name: ClassVar[str] = "dirichlet"
    delta: Annotated[MayBeInfinite, Range(0, open_least=True)] = 0.1

    def proportions(self, classes: int, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """q_i ~ Dirichlet(delta 1)."""
        if self.delta == inf:
            return np.full((clients, classes), 1 / classes)
        return rng.dirichlet(np.full(classes, self.delta), clients)


@dataclass(frozen=True)
class LongTail(Skewed):
    """Make some classes rare for everybody: the rarest is `ratio` times as frequent as the commonest."""

    name: ClassVar[str] = "longtail"
    ratio: PositiveShare = 0.01

    def proportions(self, classes: int, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """q_k proportional to ratio^(rank of k / (K - 1)), ranks drawn once for all."""
        frequency = self.ratio ** (rng.permutation(classes) / max(1, classes - 1))
        return np.tile(frequency / frequency.sum(), (clients, 1))


@dataclass(frozen=True)
class FewClasses(Skewed):
    """Show every client only a few classes, drawn for it, all equally often."""

    name: ClassVar[str] = "few"
    classes: Count = 3

    def proportions(self, classes: int, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """q_ik = 1 / classes for those that client i sees."""
        if self.classes > classes:
            raise UserError(f"few.classes={self.classes} is more than the {classes} classes there are: use fewer")
        chosen = np.stack([rng.permutation(classes) < self.classes for _ in range(clients)])
        return chosen / self.classes
