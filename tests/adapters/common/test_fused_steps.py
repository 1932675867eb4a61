"""Where steps are taken by kernels."""

from __future__ import annotations

import pytest
import torch

from fedctta.adapters.common.fused_steps import can_fuse_steps

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_on_a_cpu_steps_are_taken_in_plain_torch():
    with torch.no_grad():
        assert not can_fuse_steps(torch.zeros(1))


@pytest.mark.triton
def test_kernels_serve_full_precision_without_a_gradient():
    x = torch.zeros(1, device=DEVICE)
    assert not can_fuse_steps(x)
    with torch.no_grad():
        assert can_fuse_steps(x, x)
        assert not can_fuse_steps(x, x.double())
