from __future__ import annotations

import numpy as np
import pytest

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


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("level", [60, 128])
def test_shot_noise_varies_like_light(level, severity):
    out = corrupt(np.full((100, 32, 32, 3), level, np.uint8), "shot_noise", severity) / 255
    x = level / 255
    assert out.var() == pytest.approx(x / noise.SHOT_PHOTONS[severity - 1], rel=0.06)  # steps of 255 / photons
    assert out.mean() == pytest.approx(x - 0.5 / 255, abs=0.6 / 255)  # half a level is cut off, or less on whole ones


@pytest.mark.parametrize("severity", range(1, 6))
def test_spread_of_gaussian_and_speckle(severity):
    images = np.full((100, 32, 32, 3), 128, np.uint8)
    gauss, speckle = (corrupt(images, name, severity) / 255 for name in ("gaussian_noise", "speckle_noise"))
    assert gauss.std() == pytest.approx(noise.GAUSSIAN_STD[severity - 1], rel=0.01)
    assert speckle.std() == pytest.approx(noise.SPECKLE_STD[severity - 1] * 128 / 255, rel=0.01)
    assert gauss.mean() == pytest.approx(127.5 / 255, abs=0.001)  # cut off, not rounded
