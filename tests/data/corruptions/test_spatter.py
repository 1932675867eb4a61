from __future__ import annotations

import numpy as np
import pytest

from fedctta.data.corruptions import spatter


@pytest.mark.parametrize("severity", range(1, 6))
def test_splash_equals_the_reference_for_given_noise(severity, pictures, reference):
    images = pictures(16)
    mean, std = spatter.SPATTER[severity - 1][:2]
    noise = np.random.default_rng(severity).normal(mean, std, (16, 32, 32)).astype(np.float32)
    out = spatter.splash(images, severity, noise)
    expected = np.stack(
        [reference.splashed(*pair) for pair in zip(images, [severity] * 16, noise.astype(float), strict=True)]
    )
    assert np.abs(out.astype(int) - expected).max() <= 1
    assert (out != images).any()


def test_outlines_equal_the_reference(reference):
    rng = np.random.default_rng(0)
    pictures = np.repeat(np.repeat(rng.integers(0, 256, (10, 8, 6), dtype=np.uint8), 4, 1), 4, 2)
    pictures = np.minimum(pictures, 255 - rng.integers(0, 12, pictures.shape, dtype=np.uint8))
    found = spatter.outlines(pictures)
    for picture, edges in zip(pictures, found, strict=True):
        np.testing.assert_array_equal(edges, reference.canny(picture.astype(int)))
    assert 0.05 < found.mean() < 0.6


def test_dry_lens_leaves_the_image(pictures):
    images = pictures(2)
    for severity in (1, 5):
        np.testing.assert_array_equal(spatter.splash(images, severity, np.zeros((2, 32, 32), np.float32)), images)
