"""Batches, and words with which methods are quick."""

from __future__ import annotations

import pytest
import torch

from fedctta.adapters import adapters

# parameters with which a method is quick, or does something, on a few random images
SMALL = {
    "grad": {"lr": 1e-3},
    "eata": {"threshold": 0.9, "images": 8},
    "rdumb": {"every": 1},
    "sar": {"threshold": 0.9},
    "t3a": {"supports": 3},
    "cotta": {"views": 2},
    "memo": {"views": 2},
    "rotta": {"places": 3},
    "bbn": {"threshold": 0.9},
    "atp": {"rates": "0.01"},
    "fedthe": {"views": 2, "plus": 1, "images": 8},
    "fedicon": {"steps": 2},
}


@pytest.fixture
def batches():
    """Give the maker of a few batches of random images, the same each time."""

    def make(count=3, size=4, side=32):
        return torch.rand(count, size, 3, side, side, generator=torch.Generator().manual_seed(3))

    return make


@pytest.fixture
def quick():
    """Give the words for `fedctta.adapt` with which a method is quick, images of the source among them."""

    def words(name):
        parameters = SMALL.get(name, {})
        images = torch.zeros(8, 3, 8, 8) if adapters.create(name, parameters).source_images else None
        return {**parameters, "source_images": images}

    return words
