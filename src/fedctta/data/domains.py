"""Data by domain: what each domain holds, and the labels that say whether predictions are right.

Two forms. *Shared* labels: one array, the same images in the same order in every domain (corrupted versions of a test
set). Labels *by domain*: every domain has images of its own, as many as it has, of the classes it has, with or without
labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

UNLABELLED = -1
"""The label of an image of which nobody knows the class; it is predicted, and counts for no accuracy."""

CLEAN = "clean"
"""The domain of a corrupted test set's images as they are."""


@dataclass(frozen=True)
class Domains:
    """Images of every domain and, for accuracy only, their labels.

    Attributes:
        names: the domains in the order in which streams meet them.
        images: for each domain an array with one entry per image: uint8 pictures [n, H, W, C] or [n, H, W], which reach
            the model as float [C, H, W] in [0, 1]; or floats of any shape [n, ...], which reach it unchanged.
        labels: one array [n] shared by all domains, which then hold the same images in the same order; or an array for
            each domain (None or no entry: not labelled); or None for no labels at all.
        classes: the class names; without any, they are numbered, as many as the model has.
        notes: what a reader of results should be told about the data.
        training: of each domain on which the source model was trained, its training images, not among `images`.
    """

    names: tuple[str, ...]
    images: Mapping[str, NDArray[Any]]
    labels: NDArray[np.int64] | Mapping[str, NDArray[np.int64] | None] | None = None
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    training: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    dense: ClassVar[bool] = False  # one label per image

    @property
    def shared(self) -> bool:
        """Whether all domains hold the same images, with the same labels."""
        return self.labels is not None and not isinstance(self.labels, Mapping)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of images in every domain."""
        return tuple(len(self.images[name]) for name in self.names)

    @property
    def count(self) -> int:
        """Number of images in the smallest domain."""
        return len(self.labels) if self.shared else min(self.sizes)  # type: ignore[arg-type]

    @property
    def pictures(self) -> bool:
        """Whether images are pictures (uint8, channels last), and not any other floats."""
        return bool(self.images[self.names[0]].dtype == np.uint8)

    def labels_of(self, name: str) -> NDArray[np.int64]:
        """Return the labels [n] of a domain; `UNLABELLED` where there are none."""
        mine = self.labels.get(name) if isinstance(self.labels, Mapping) else self.labels
        return np.full(len(self.images[name]), UNLABELLED, np.int64) if mine is None else mine

    def labelled(self, name: str) -> bool:
        """Whether a domain has labels."""
        return (self.labels.get(name) if isinstance(self.labels, Mapping) else self.labels) is not None


def numbered(count: int) -> tuple[str, ...]:
    """Return names for classes of which nothing is known but their number."""
    return tuple(f"class {k}" for k in range(count))
