"""Which test images every client sees. One way per file.

A sampler deals images to clients by their labels. Where all domains hold the same images, a client sees the same ones
in the same order in every domain, as in the papers (`deal`); where they hold images of their own, each domain is dealt
by itself (`deal_domains`). Labels decide what is shown, as nature does; no method ever sees them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedctta.errors import UserError
from fedctta.registry import Registry, check_ranges

Indices = NDArray[np.int64]


class Sampler:
    """How images are dealt to clients."""

    name: ClassVar[str]
    by_class: ClassVar[bool] = False  # True: an image's class decides who sees it, so it must have one

    def __post_init__(self) -> None:
        """Refuse parameters outside the ranges that their types tell."""
        check_ranges(self)

    def share(self, images: int, clients: int) -> int:
        """Return how many images a client can have."""
        return images

    def deal(self, labels: Indices, clients: int, need: int, rng: np.random.Generator) -> Indices:
        """Return the indices [clients, need] of the images each client sees, in the order it sees them."""
        raise TypeError(f"{type(self).__name__} must define deal")

    def largest_share(self, images: int, clients: int) -> int:
        """Return how many images of a domain of its own the client with most of them sees."""
        return self.share(images, clients)

    def deal_domains(
        self, labels: Sequence[Indices], classes: int, clients: int, most: int, rng: np.random.Generator
    ) -> list[list[Indices]]:
        """Return, for each domain and client, the indices of the images it sees: all of its share, at most `most`."""
        needs = [min(most, self.share(len(each), clients)) for each in labels]
        return [list(self.deal(each, clients, need, rng)) for each, need in zip(labels, needs, strict=True)]


def in_bursts(dealt: Indices, labels: Indices, rng: np.random.Generator) -> Indices:
    """Put every client's images in an order in which classes arrive one after another, in an order of the client's."""
    rank = np.stack([rng.permutation(int(labels.max()) + 1) for _ in dealt])
    order = np.argsort(np.take_along_axis(rank, labels[dealt], axis=1), axis=1, kind="stable")
    return np.take_along_axis(dealt, order, axis=1)


def by_proportions(labels: Indices, proportions: NDArray[np.float64], need: int, rng: np.random.Generator) -> Indices:
    """Draw `need` images with class proportions q[K], in random order.

    Class k gets round(need q_k) images and the most frequent class what is left over or too many. Images are drawn
    without replacement, and again from the whole class where there are not enough of it.
    """
    counts = np.round(need * proportions).astype(np.int64)
    top = int(np.argmax(counts))
    counts[top] += need - counts.sum()
    if counts[top] < 0:  # rounding up many small classes took more than the largest has
        raise UserError(f"{need} images cannot be dealt to {len(proportions)} classes: give every client more of them")
    drawn = []
    for k in np.flatnonzero(counts):
        members = np.flatnonzero(labels == k)
        if not len(members):
            raise UserError(f"class {k} has no image to draw from: use samples=disjoint")
        rounds = -(-counts[k] // len(members))
        drawn.append(np.concatenate([rng.permutation(members) for _ in range(rounds)])[: counts[k]])
    return rng.permutation(np.concatenate(drawn)).astype(np.int64)


samplers: Registry[Sampler] = Registry("samples", __name__)
