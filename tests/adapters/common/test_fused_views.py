"""Where views are drawn by kernels."""

from __future__ import annotations

import pytest
import torch

from fedctta.adapters.common.fused_views import LARGEST, can_fuse_views

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_on_a_cpu_views_are_drawn_in_plain_torch():
    with torch.no_grad():
        assert not can_fuse_views(torch.zeros(1, 3, 4, 4))


@pytest.mark.triton
def test_kernels_serve_small_images_without_a_gradient():
    x = torch.zeros(1, 3, 128, 129, device=DEVICE)
    with torch.no_grad():
        assert not can_fuse_views(x)
        assert x[..., :-1].shape[-1] * 128 == LARGEST
        assert can_fuse_views(x[..., :-1])
    assert not can_fuse_views(x[..., :-1])
