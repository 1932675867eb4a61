"""Kernels that pull gradients back through rectified normalisation, against plain torch."""

from __future__ import annotations

from math import inf

import pytest
import torch

from fedctta.core.batch_normalisation import find_gradients
from fedctta.core.rows_of_channels import find_rows

pytestmark = pytest.mark.triton
OVER = (1, 3, 4)  # of [N, B, C, H, W]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPES = [(3, 4, 24, 5, 7), (2, 2, 70, 3, 3), (1, 2, 4, 48, 48)]


def draw(shape):
    """Return gradients and images[N, B, C, H, W], channels last, and six tensors[N, C], of which variances are > 0."""
    n, b, c, h, w = shape
    generator = torch.Generator().manual_seed(0)
    large = torch.randn(2, n, b, h, w, c, generator=generator).movedim(-1, 3).to(DEVICE)
    mean, var, *others = torch.randn(6, n, c, generator=generator).to(DEVICE).unbind()
    return *large.unbind(), mean, var.exp(), *others


@pytest.mark.parametrize(("top", "wanted"), [(0.8, True), (inf, False)])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_scale_and_a_shift(shape, top, wanted):
    from fedctta.core import rectified_kernels

    gradient, x, scale, _, shift, *_ = draw(shape)
    of_x = torch.zeros_like(x)
    rows = find_rows(OVER, (gradient, x, of_x), (scale, shift))
    of_scale, of_shift = rectified_kernels.pull_back(gradient, x, scale, shift, top, of_x if wanted else None, rows)
    a, b = (each[:, None, :, None, None] for each in (scale, shift))
    passed = gradient * ((x * a + b > 0) & (x * a + b < top))
    torch.testing.assert_close(of_x, passed * a if wanted else torch.zeros_like(x))
    torch.testing.assert_close(of_scale, (passed * x).sum(OVER), atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(of_shift, passed.sum(OVER), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("top", [None, 0.8, inf])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_batchs_own_statistics(shape, top):
    from fedctta.core import rectified_kernels

    gradient, x, mean, var, weight, bias, of_mean, of_var = draw(shape)
    of_x, small = torch.zeros_like(x), (mean, var, weight, bias, of_mean, of_var)
    rows = find_rows(OVER, (gradient, x, of_x), small)
    of_weight, of_bias = rectified_kernels.pull_back_by_batch(gradient, x, small, 1e-3, top, of_x, rows)
    tensors = (gradient, of_mean, of_var, x, mean, var, weight, bias)
    expected = find_gradients(*tensors, eps=1e-3, top=top, over=OVER)
    for found, other in zip((of_x, of_weight, of_bias), expected, strict=True):
        torch.testing.assert_close(found, other, atol=1e-3, rtol=1e-4)
