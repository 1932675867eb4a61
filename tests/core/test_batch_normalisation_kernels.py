"""Kernels that pull gradients back through a batch's own statistics, against plain torch."""

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


@pytest.mark.parametrize("top", [None, 0.8, inf])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_batchs_own_statistics(shape, top):
    from fedctta.core import batch_normalisation_kernels

    gradient, x, mean, var, weight, bias, of_mean, of_var = draw(shape)
    of_x, small = torch.zeros_like(x), (mean, var, weight, bias, of_mean, of_var)
    rows = find_rows(OVER, (gradient, x, of_x), small)
    of_weight, of_bias = batch_normalisation_kernels.pull_back_by_batch(gradient, x, small, 1e-3, top, of_x, rows)
    tensors = (gradient, of_mean, of_var, x, mean, var, weight, bias)
    expected = find_gradients(*tensors, eps=1e-3, top=top, over=OVER)
    for found, other in zip((of_x, of_weight, of_bias), expected, strict=True):
        torch.testing.assert_close(found, other, atol=1e-3, rtol=1e-4)
