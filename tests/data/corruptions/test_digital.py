from __future__ import annotations

import numpy as np

from fedctta.data.corruptions import corrupt


def flat(*colour):
    return np.full((1, 32, 32, 3), colour, np.uint8)


def test_contrast_keeps_the_mean_and_shrinks_the_range(pictures):
    images = pictures(5)
    out = corrupt(images, "contrast", 5).astype(float)
    assert np.abs(out.mean(axis=(1, 2)) + 0.5 - images.mean(axis=(1, 2))).max() < 0.3
    assert np.all(np.ptp(out, axis=(1, 2)) <= 0.15 * np.ptp(images.astype(float), axis=(1, 2)) + 1)


def test_brightness_of_black_and_colour():
    np.testing.assert_array_equal(corrupt(flat(0, 0, 0), "brightness", 5)[0, 0, 0], [76, 76, 76])
    np.testing.assert_array_equal(corrupt(flat(100, 50, 0), "brightness", 4)[0, 0, 0], [151, 75, 0])
    np.testing.assert_array_equal(corrupt(flat(255, 50, 0), "brightness", 5)[0, 0, 0], [255, 50, 0])


def test_saturate_turns_grey_to_red_only_when_it_adds():
    np.testing.assert_array_equal(corrupt(flat(100, 100, 100), "saturate", 5)[0, 0, 0], [100, 80, 80])
    np.testing.assert_array_equal(corrupt(flat(100, 100, 100), "saturate", 3)[0, 0, 0], [100, 100, 100])


def test_pixelate_uses_the_whole_part_of_the_size():
    images = np.zeros((1, 32, 32, 3), np.uint8)
    images[:, :, ::2] = 255
    assert len(np.unique(corrupt(images, "pixelate", 5)[0, 0, :, 0])) <= 20
