"""Noise: every pixel and colour is disturbed on its own."""

from __future__ import annotations

import numpy as np

from fedctta.data.corruptions.filters import Images, truncate

GAUSSIAN_STD = (0.04, 0.06, 0.08, 0.09, 0.10)
SHOT_PHOTONS = (500, 250, 100, 75, 50)
IMPULSE_FRACTION = (0.01, 0.02, 0.03, 0.05, 0.07)
SPECKLE_STD = (0.06, 0.10, 0.12, 0.16, 0.20)


def gaussian_noise(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """Return x + std n, with n standard normal."""
    noise = rng.standard_normal(images.shape, dtype=np.float32)
    noise *= 255 * GAUSSIAN_STD[severity - 1]
    return truncate(images + noise)


def shot_noise(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """Return Poisson(photons x) / photons: light counted in whole photons."""
    photons = SHOT_PHOTONS[severity - 1]
    return truncate(rng.poisson(images * (photons / 255)) / photons * 255)


def impulse_noise(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """A fraction of the values, each colour by itself, turns white or black with equal chance."""
    fraction = IMPULSE_FRACTION[severity - 1]
    chance = rng.random(images.shape, dtype=np.float32)
    noisy = images.copy()
    noisy[chance < fraction] = 0
    noisy[chance < fraction / 2] = 255
    return noisy


def speckle_noise(images: Images, severity: int, rng: np.random.Generator) -> Images:
    """Return x + x std n, with n standard normal: noise in proportion to the light."""
    noise = rng.standard_normal(images.shape, dtype=np.float32)
    noise *= SPECKLE_STD[severity - 1]
    return truncate(images * (1 + noise))
