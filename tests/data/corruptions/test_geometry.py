from __future__ import annotations

import numpy as np
import pytest

from fedctta.data.corruptions import geometry
from fedctta.data.corruptions.filters import pixels, planes, truncate


@pytest.mark.parametrize("severity", range(1, 6))
def test_deformation_equals_the_reference_for_given_draws(severity, pictures, reference):
    images = pictures(12)
    alpha, sigma, tilt = (32 * share for share in geometry.ELASTIC[severity - 1])
    rng = np.random.default_rng(severity)
    moves = rng.uniform(-tilt, tilt, (12, 3, 2))
    noise = rng.uniform(-1, 1, (2, 12, 32, 32)).astype(np.float32)
    field = np.float32(alpha) * geometry.smooth(noise, sigma)
    out = truncate(pixels(geometry.deform(planes(images), moves, field)))
    expected = np.stack([reference.deformed(images[i], severity, moves[i], noise[:, i]) for i in range(12)])
    gap = np.abs(out.astype(int) - expected)
    # Where float32 and float64 fall on two sides of a multiple of 1/32 pixel, a steep edge may show it.
    assert (gap > 1).mean() < 1e-3
    assert (gap > 0).mean() < 1e-3


def test_no_move_is_the_identity(pictures):
    levels = planes(pictures(3, 20, 33))
    still = geometry.deform(levels, np.zeros((3, 3, 2)), np.zeros((2, 3, 20, 33), np.float32))
    np.testing.assert_allclose(still, levels, atol=1e-2)


def test_displacement_is_right_then_down(pictures):
    levels = planes(pictures(1))
    field = np.zeros((2, 1, 32, 32), np.float32)
    field[0] = 3
    moved = geometry.deform(levels, np.zeros((1, 3, 2)), field)
    np.testing.assert_allclose(moved[..., :29], levels[..., 3:], atol=1e-2)
