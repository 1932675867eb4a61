"""Views drawn by kernels are those of plain torch."""

from __future__ import annotations

import pytest
import torch

from fedctta.adapters.common.augmentation import augment, view_keys
from fedctta.adapters.common.fused_views import LARGEST, can_fuse_views
from fedctta.core import gpu_kernels
from fedctta.core.randomness import keys


def test_on_a_cpu_views_are_drawn_in_plain_torch():
    with torch.no_grad():
        assert not can_fuse_views(torch.zeros(1, 3, 4, 4))


@pytest.mark.gpu
def test_kernels_serve_small_images_without_a_gradient():
    x = torch.zeros(1, 3, 128, 129, device="cuda")
    with torch.no_grad():
        assert not can_fuse_views(x)
        assert x[..., :-1].shape[-1] * 128 == LARGEST
        assert can_fuse_views(x[..., :-1])
    assert not can_fuse_views(x[..., :-1])


@pytest.mark.gpu
@pytest.mark.parametrize("size", [32, 11])
def test_kernels_draw_the_same_views(size, monkeypatch):
    x = torch.rand(5, 4, size, size, 3, generator=torch.Generator().manual_seed(0)).permute(0, 1, 4, 2, 3).cuda()
    x[0, 0, :, :3], x[0, 1, :, :2], x[0, 2] = 0, 1, x[0, 2, :1]  # black, white and grey, which have no hue
    drawn = torch.func.vmap(lambda x, key: torch.func.vmap(lambda one: augment(x, one))(view_keys(key, 3)))
    with torch.no_grad():
        found, alone = drawn(x, keys(0, 5, "cuda")), augment(x[3], view_keys(keys(0, 5, "cuda")[3], 3)[1])
        monkeypatch.setattr(gpu_kernels, "has_kernels", lambda: False)
        expected = drawn(x, keys(0, 5, "cuda"))
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
    torch.testing.assert_close(alone, expected[3, 1], atol=2e-5, rtol=0)
