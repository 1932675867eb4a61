"""Views drawn by kernels are those of plain torch."""

from __future__ import annotations

import pytest
import torch

from fedctta.adapters.common.augmentation import augment, view_keys
from fedctta.core import gpu_kernels
from fedctta.core.randomness import keys

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.triton
@pytest.mark.parametrize("size", [32, 11])
def test_kernels_draw_the_same_views(size, monkeypatch):
    x = torch.rand(5, 4, size, size, 3, generator=torch.Generator().manual_seed(0)).permute(0, 1, 4, 2, 3).to(DEVICE)
    x[0, 0, :, :3], x[0, 1, :, :2], x[0, 2] = 0, 1, x[0, 2, :1]  # black, white and grey, which have no hue
    drawn = torch.func.vmap(lambda x, key: torch.func.vmap(lambda one: augment(x, one))(view_keys(key, 3)))
    with torch.no_grad():
        found, alone = drawn(x, keys(0, 5, DEVICE)), augment(x[3], view_keys(keys(0, 5, DEVICE)[3], 3)[1])
        monkeypatch.setattr(gpu_kernels, "has_kernels", lambda: False)
        expected = drawn(x, keys(0, 5, DEVICE))
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
    torch.testing.assert_close(alone, expected[3, 1], atol=2e-5, rtol=0)
