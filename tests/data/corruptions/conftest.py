from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from fedctta.data.corruptions.textures import stand_in


@pytest.fixture(scope="session")
def reference():
    """The plain second implementation, loaded by path so that no test import mode matters."""
    spec = importlib.util.spec_from_file_location("corruption_reference", Path(__file__).with_name("reference.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def pictures():
    """A function (n, height, width, seed) -> images: waves, a patch of flat colour, a black corner, some grain.

    They are made once, and are read-only.
    """

    @cache
    def make(n, height=32, width=32, seed=0):
        rng = np.random.default_rng(seed)
        y, x = np.mgrid[:height, :width] / 32
        out = np.full((n, height, width, 3), 0.5)
        for _ in range(4):
            fy, fx, phase = rng.uniform(-12, 12, (3, n, 1, 1))
            out += 0.15 * np.sin(fy * y + fx * x + phase)[..., None] * rng.uniform(-1, 1, (n, 1, 1, 3))
        out += rng.uniform(0, 0.08, (n, 1, 1, 1)) * rng.standard_normal(out.shape)
        out += rng.uniform(-0.3, 0.3, (n, 1, 1, 1))
        for image in out:
            top, left = rng.integers(0, height // 2), rng.integers(0, width // 2)
            image[top : top + height // 3, left : left + width // 3] = rng.random(3)
            image[-3:, -3:], image[:2, :2], image[-3:, :3] = 0, 1, rng.random()
        images = (np.clip(out, 0, 1) * 255).astype(np.uint8)
        images.flags.writeable = False
        return images

    return make


@pytest.fixture(scope="session")
def textures():
    return stand_in().images
