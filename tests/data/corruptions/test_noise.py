from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import poisson

from fedctta.data.corruptions import corrupt, noise


@pytest.mark.parametrize("severity", range(1, 6))
def test_impulse_hits_single_values_white_and_black_alike(severity):
    images = np.full((400, 32, 32, 3), 100, np.uint8)
    out = corrupt(images, "impulse_noise", severity)
    fraction = noise.IMPULSE_FRACTION[severity - 1]
    hits = (out != 100).sum(axis=(1, 2, 3))
    error = np.sqrt(3072 * fraction * (1 - fraction))
    assert abs(hits.mean() - 3072 * fraction) < 4 * error / 20
    assert 0.85 < hits.std() / error < 1.15
    assert set(np.unique(out)) == {0, 100, 255}
    assert abs((out == 255).sum() / hits.sum() - 0.5) < 4 * 0.5 / np.sqrt(hits.sum())
    whole_pixels = (out != 100).all(axis=3).mean()
    assert whole_pixels < fraction**2  # independent colours: about fraction cubed


@pytest.mark.parametrize(("severity", "photons"), [(1, 500), (2, 250), (3, 100), (4, 75), (5, 50)])
@pytest.mark.parametrize("level", [60, 128])
def test_shot_noise_is_light_counted_in_whole_photons(level, severity, photons):
    # k photons give level floor(255 k / photons). Those steps are uneven, which the variance x / photons leaves out: at
    # 250 photons they are 1 and rarely 2, so near one level it is up to 1.02^2 = 4 % less. Hence the exact law.
    k = np.arange(3 * photons)
    chance = np.bincount(np.minimum(255 * k // photons, 255), poisson.pmf(k, photons * level / 255), minlength=256)
    mean = chance @ np.arange(256)
    away = np.arange(256) - mean
    variance, fourth = chance @ away**2, chance @ away**4
    out = corrupt(np.full((100, 32, 32, 3), level, np.uint8), "shot_noise", severity)
    # n draws have a mean with standard error sqrt(v / n), and a variance with sqrt((m4 - v^2) / n), here 0.3 % of it.
    n = out.size
    assert abs(out.mean() - mean) < 4 * np.sqrt(variance / n)
    assert abs(out.var() - variance) < 4 * np.sqrt((fourth - variance**2) / n)
    # How often each level comes: chi squared, of mean f and variance 2 f, over the levels expected twenty times.
    often = n * chance >= 20
    found = np.bincount(out.ravel(), minlength=256)
    freedom = often.sum()
    assert (((found - n * chance) ** 2)[often] / (n * chance)[often]).sum() < freedom + 4 * np.sqrt(2 * freedom)
    assert found[chance == 0].sum() == 0


@pytest.mark.parametrize("severity", range(1, 6))
def test_spread_of_gaussian_and_speckle(severity):
    images = np.full((100, 32, 32, 3), 128, np.uint8)
    gauss, speckle = (corrupt(images, name, severity) / 255 for name in ("gaussian_noise", "speckle_noise"))
    assert gauss.std() == pytest.approx(noise.GAUSSIAN_STD[severity - 1], rel=0.01)
    assert speckle.std() == pytest.approx(noise.SPECKLE_STD[severity - 1] * 128 / 255, rel=0.01)
    assert gauss.mean() == pytest.approx(127.5 / 255, abs=0.001)  # cut off, not rounded
