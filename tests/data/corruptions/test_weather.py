from __future__ import annotations

import numpy as np

from fedctta.data.corruptions import corrupt, weather


def test_plasma_spans_zero_to_one_and_wraps():
    fields = weather.plasma(200, 32, 3.0, np.random.default_rng(0))
    assert fields.min(axis=(1, 2)).max() == 0
    assert fields.max(axis=(1, 2)).min() == 1
    seam = np.abs(fields[:, :, 0] - fields[:, :, -1]).mean()
    inside = np.abs(np.diff(fields, axis=2)).mean()
    assert seam < inside  # without the wrap it would be the difference of far points, many times as much


def test_fog_scales_by_the_brightest_value():
    dim = np.full((40, 32, 32, 3), 51, np.uint8)
    out = corrupt(dim, "fog", 4)
    # x = M = 0.2, a = 1: y lies between 0.2 * 0.2 / 1.2 and 1.2 * 0.2 / 1.2, both reached as P spans 0 to 1
    assert out.min() == 8
    assert out.max() in (50, 51)
    assert np.ptp(out, axis=3).max() == 0


def test_frost_is_a_piece_of_one_texture():
    textures = [np.full((40, 50, 3), level, np.uint8) for level in (0, 50, 100, 150, 200)]
    out = corrupt(np.zeros((500, 32, 32, 3), np.uint8), "frost", 5, textures=textures)
    assert np.ptp(out, axis=(1, 2, 3)).max() == 0
    levels, counts = np.unique(out[:, 0, 0, 0], return_counts=True)
    np.testing.assert_array_equal(levels, [0, 22, 45, 67, 90])
    assert counts.min() > 70


def test_frost_starts_anywhere_but_the_last_place():
    y, x = np.mgrid[:40, :36]
    texture = np.stack([5 * y, 5 * x, 0 * x], axis=-1).astype(np.uint8)
    out = corrupt(np.zeros((600, 32, 32, 3), np.uint8), "frost", 1, textures=[texture] * 5)
    assert set(np.unique(out[:, 0, 0, 0])) == set(range(8))
    assert set(np.unique(out[:, 0, 0, 1])) == set(range(4))


def test_frost_enlarges_a_texture_that_is_too_small():
    texture = np.full((20, 90, 3), 100, np.uint8)
    out = corrupt(np.zeros((3, 70, 40, 3), np.uint8), "frost", 1, textures=[texture])
    assert np.all(out == 20)


def test_snow_is_symmetric_and_whitens():
    images = np.zeros((20, 32, 32, 3), np.uint8)
    out = corrupt(images, "snow", 1)
    np.testing.assert_array_equal(out, out[:, ::-1, ::-1])
    assert out.min() == 6  # 0.05 * 0.5 * 255
    assert out.max() > 20
