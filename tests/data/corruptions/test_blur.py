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
