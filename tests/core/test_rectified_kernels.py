"""The kernel that pulls gradients back through a rectified scale and shift, against plain torch."""

from __future__ import annotations

from math import inf

import pytest
import torch

from fedctta.core.rows_of_channels import find_rows

pytestmark = pytest.mark.triton
OVER = (1, 3, 4)  # of [N, B, C, H, W]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPES = [(3, 4, 24, 5, 7), (2, 2, 70, 3, 3), (1, 2, 4, 48, 48)]


def draw(shape):
    """Return gradients and images[N, B, C, H, W], channels last, scales and shifts[N, C]."""
    n, b, c, h, w = shape
    generator = torch.Generator().manual_seed(0)
    large = torch.randn(2, n, b, h, w, c, generator=generator).movedim(-1, 3).to(DEVICE)
    return *large.unbind(), *torch.randn(2, n, c, generator=generator).to(DEVICE).unbind()


@pytest.mark.parametrize(("top", "wanted"), [(0.8, True), (inf, False)])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_scale_and_a_shift(shape, top, wanted):
    from fedctta.core import rectified_kernels

    gradient, x, scale, shift = draw(shape)
    of_x = torch.zeros_like(x)
    rows = find_rows(OVER, (gradient, x, of_x), (scale, shift))
    of_scale, of_shift = rectified_kernels.pull_back(gradient, x, scale, shift, top, of_x if wanted else None, rows)
    a, b = (each[:, None, :, None, None] for each in (scale, shift))
    passed = gradient * ((x * a + b > 0) & (x * a + b < top))
    torch.testing.assert_close(of_x, passed * a if wanted else torch.zeros_like(x))
    torch.testing.assert_close(of_scale, (passed * x).sum(OVER), atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(of_shift, passed.sum(OVER), atol=1e-3, rtol=1e-4)
