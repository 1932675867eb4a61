"""A model and the size of its images, and random data for it: pictures, pictures with masks, or series."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import nn

from fedctta.data.domains import Domains
from fedctta.data.masked import AnyDomains, MaskedDomains
from fedctta.models import ARCHITECTURES, build, size_option

SIDE = 32  # of pictures, unless it is said
STEPS, CHANNELS = 128, 6  # of series
CLASSES = tuple("0123456789")


class Shape(NamedTuple):
    """A model by name, and the side of its pictures."""

    model: str
    side: int = SIDE

    @property
    def dense(self) -> bool:
        """Whether every pixel has a class."""
        return ARCHITECTURES[self.model].dense

    @property
    def series(self) -> bool:
        """Whether the model reads series, which have no side."""
        return ARCHITECTURES[self.model].series


def build_model(shape: Shape) -> nn.Module:
    """Make the model with random weights, on the CPU."""
    return build(shape.model, len(CLASSES), **size_option(shape.model, shape.side)).eval()


def input_shape(shape: Shape) -> tuple[int, ...]:
    """Return the shape of one input as the model reads it."""
    return (CHANNELS, STEPS) if shape.series else (3, shape.side, shape.side)


def make_data(shape: Shape, count: int) -> AnyDomains:
    """Draw one domain of random inputs, in memory; methods that study the source are shown the same."""
    random = np.random.default_rng(0)
    labels = random.integers(0, len(CLASSES), count)
    if shape.series:
        series = random.normal(size=(count, CHANNELS, STEPS)).astype(np.float32)
        return Domains(("noise",), {"noise": series}, labels, CLASSES, (), {"noise": series})
    pictures = random.integers(0, 256, (count, shape.side, shape.side, 3), dtype=np.uint8)
    if shape.dense:
        masks = random.integers(0, len(CLASSES), pictures.shape[:3], dtype=np.uint8)
        return MaskedDomains(("noise",), {"noise": pictures}, {"noise": masks}, CLASSES, ())
    return Domains(("noise",), {"noise": pictures}, labels, CLASSES, (), {"noise": pictures})
