from __future__ import annotations

import numpy as np
import pytest

from fedctta.data.corruptions import corrupt, weather


class Given:
    """Stands in for a generator: the uniform draws are those of a table [n, count], in order."""

    def __init__(self, table):
        self.table, self.used = table, 0

    def random(self, shape, dtype=np.float64):
        count = np.prod(shape[1:])
        self.used += count
        return self.table[:, self.used - count : self.used].reshape(shape).astype(dtype)


@pytest.mark.parametrize("size", [8, 32])
@pytest.mark.parametrize("decay", sorted({decay for _, decay in weather.FOG}))
def test_plasma_equals_the_reference_for_given_draws(decay, size, reference):
    draws = Given(np.random.default_rng(0).random((10, size**2 - 1), dtype=np.float32))
    fields = weather.plasma(10, size, decay, draws)
    assert draws.used == size**2 - 1  # every point but the first corner has its own
    walk = [reference.plasma(size, decay, list(map(float, row))) for row in draws.table]
    # Up to ten stages of float32, each rounding the sum and the wobble to 2^-24 of about the span: 10 * 2 * 6e-8.
    np.testing.assert_allclose(fields, walk, rtol=0, atol=1.2e-6)


def test_plasma_spans_zero_to_one_and_wraps():
    fields = weather.plasma(500, 32, 3.0, np.random.default_rng(0))
    assert fields.min(axis=(1, 2)).max() == 0
    assert fields.max(axis=(1, 2)).min() == 1
    # The construction is the same seen in a mirror at line 0 of the torus, so the step from the last line to it follows
    # the law of the step from it to line 1; steps elsewhere do not. The mean gap is held to four standard errors.
    for axis in (1, 2):
        last, first, second = (fields.take(line, axis) for line in (-1, 0, 1))
        gap = (np.abs(first - last) - np.abs(second - first)).mean(axis=1)
        assert abs(gap.mean()) < 4 * gap.std() / np.sqrt(len(gap))


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
