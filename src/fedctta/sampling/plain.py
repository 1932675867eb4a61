"""Images dealt without regard to their class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedctta.errors import UserError
from fedctta.sampling import Indices, Sampler


@dataclass(frozen=True)
class Disjoint(Sampler):
    """Deal every test image to at most one client."""

    name: ClassVar[str] = "disjoint"

    def share(self, images: int, clients: int) -> int:
        """Return an equal part."""
        return images // clients

    def deal(self, labels: Indices, clients: int, need: int, rng: np.random.Generator) -> Indices:
        """Shuffle all images and cut."""
        if clients * need > len(labels):
            raise UserError(
                f"{clients} clients x {need} images need more than the {len(labels)} images there are: use fewer"
                " clients or slots, a smaller batch, or samples=overlap"
            )
        return rng.permutation(len(labels))[: clients * need].reshape(clients, need)

    def largest_share(self, images: int, clients: int) -> int:
        """Return an equal part, rounded up."""
        return -(-images // clients)

    def deal_domains(
        self, labels: Sequence[Indices], classes: int, clients: int, most: int, rng: np.random.Generator
    ) -> list[list[Indices]]:
        """Shuffle every domain and cut it into parts that differ by one image at most."""
        shuffled = [rng.permutation(len(each)) for each in labels]
        return [[part[:most] for part in np.array_split(each, clients)] for each in shuffled]


@dataclass(frozen=True)
class Overlap(Sampler):
    """Let every client draw on its own, so that clients may share images (as published code does)."""

    name: ClassVar[str] = "overlap"

    def deal(self, labels: Indices, clients: int, need: int, rng: np.random.Generator) -> Indices:
        """Shuffle all images anew for every client."""
        if need > len(labels):
            raise UserError(
                f"{need} images per client are more than the {len(labels)} there are: use fewer slots or a smaller"
                " batch"
            )
        # Copies, so that the rest of every client's shuffle can be forgotten.
        return np.stack([rng.permutation(len(labels))[:need].copy() for _ in range(clients)])
