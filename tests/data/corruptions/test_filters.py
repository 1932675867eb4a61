from __future__ import annotations

import numpy as np
import pytest

from fedctta.data.corruptions import filters


@pytest.mark.parametrize(("radius", "sigma"), [(6, 1.0), (9, 2.5), (14, 12.0)])
@pytest.mark.parametrize("shape", [(32, 32), (9, 40)])
def test_smear_equals_the_reference_at_given_angles(radius, sigma, shape, pictures, reference):
    images = pictures(24, *shape)
    angles = np.concatenate([np.linspace(-135, 45, 20), [0, 90, -90, 180]])
    out = filters.pixels(filters.smear(filters.planes(images), radius, sigma, angles))
    for image, angle, mine in zip(images, angles, out, strict=True):
        gap = mine - reference.smeared(image.astype(float), radius, sigma, angle)
        assert np.abs(gap).max() <= 1
        assert (gap != 0).mean() < 0.001


@pytest.mark.parametrize("size", [8, 31, 32, 57])
def test_zoom_is_the_reference(size, reference):
    x = np.random.default_rng(0).random((size, size))
    for factor in (1, 1.01, 1.06, 1.15, 1.25, 1.75, 2.25):
        matrix = filters.zoom_matrix(size, factor).numpy()
        np.testing.assert_allclose(matrix @ x @ matrix.T, reference.zoomed(x, factor), atol=1e-5)


def test_gaussian_of_sigma_one_twentieth_is_the_identity():
    np.testing.assert_array_equal(filters.gaussian_matrix(32, 0.05), np.eye(32))
    assert np.count_nonzero(filters.gaussian_matrix(32, 1.0)[16]) == 9  # radius 4


def test_correlate_does_not_flip_and_mirrors_about_the_edge():
    x = np.zeros((1, 8, 8), np.float32)
    x[0, 4, 4] = 1
    kernel = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], float)
    np.testing.assert_array_equal(filters.correlate(x, kernel)[0, 3:6, 3:6], kernel[::-1, ::-1])
    x = np.arange(64, dtype=np.float32).reshape(1, 8, 8)
    left = np.array([[0, 0, 0], [1, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(filters.correlate(x, left)[0, :, 0], x[0, :, 1])


def test_truncate_cuts_but_keeps_whole_levels():
    just_below = np.nextafter(np.float32(201), np.float32(0))
    out = filters.truncate(np.array([-3, 0.9, 199.99, just_below, 254.6, 300], np.float32))
    np.testing.assert_array_equal(out, [0, 0, 199, 201, 254, 255])
