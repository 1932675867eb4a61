from __future__ import annotations

import numpy as np
import pytest

from fedctta.data.corruptions import blur, corrupt


def test_shuffle_equals_the_walk_over_pixels(pictures, reference):
    images = pictures(6, 32, 20)
    moves = np.random.default_rng(0).integers(0, 2, (2, 6, 32, 20)).astype(bool)
    out = blur.shuffle(images, moves)
    for index, image in enumerate(images):
        np.testing.assert_array_equal(out[index], reference.glass_shuffle(image, -moves[:, index].astype(int)))


class Given:
    """Stands in for a generator: whole numbers are taken from a list of arrays."""

    def __init__(self, arrays):
        self.arrays = iter(arrays)

    def integers(self, low, high, size, dtype):
        array = next(self.arrays)
        assert (low, high, size) == (0, 2, array.shape)
        return array.astype(dtype)


@pytest.mark.parametrize("severity", range(1, 6))
def test_glass_equals_the_reference_for_given_moves(severity, pictures, reference):
    images = pictures(40)
    walks = np.random.default_rng(severity).integers(0, 2, (blur.GLASS[severity - 1][1], 2, 40, 32, 32))
    out = blur.glass_blur(images, severity, Given(walks))
    expected = np.stack([reference.glassed(image, severity, -walks[:, :, i]) for i, image in enumerate(images)])
    gap = np.abs(out.astype(int) - expected)
    assert gap.max() <= 1
    # Only where float32, which is off by some 2e-5 levels, falls on the other side of a cut.
    assert (gap > 0).mean() < 1e-3


def test_glass_copies_each_of_four_neighbours_equally_often():
    y, x = np.mgrid[:32, :32]
    images = np.stack([8 * y, 8 * x, 0 * x], axis=-1).astype(np.uint8)[None].repeat(300, axis=0)
    moved = (images.astype(int) - corrupt(images, "glass_blur", 1)) // 8
    assert not moved[:, :2].any()
    assert not moved[:, :, :2].any()
    inside = moved[:, 2:, 2:]
    for up in (0, 1):
        for left in (0, 1):
            share = ((inside[..., 0] == up) & (inside[..., 1] == left)).mean()
            assert share == pytest.approx(0.25, abs=0.005)


def test_defocus_kernels():
    taps = [(0.845, 0.0371, 0.0016), (0.619, 0.0838, 0.0113), (0.445, 0.1110, 0.0277), (0.2, 0.2, 0), (1 / 9,) * 3]
    for parameters, (centre, edge, corner) in zip(blur.DEFOCUS, taps, strict=True):
        kernel = blur.disk(*parameters)
        middle = kernel.shape[0] // 2
        found = kernel[middle, middle], kernel[middle, middle + 1], kernel[middle + 1, middle + 1]
        assert found == pytest.approx((centre, edge, corner), abs=6e-4)
        assert kernel.sum() == pytest.approx(1, abs=1e-6)


def test_motion_goes_to_one_side():
    images = np.zeros((50, 32, 32, 3), np.uint8)
    images[:, :, 16] = 255
    out = corrupt(images, "motion_blur", 5)
    assert out[:, 8:24, :16].any()
    assert not out[:, 8:24, 17:].any()
