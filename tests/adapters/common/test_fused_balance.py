"""Where statistics are balanced by kernels."""

from __future__ import annotations

import pytest
import torch

from fedctta.adapters.common.fused_balance import MOST, can_fuse_balance

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_on_a_cpu_statistics_are_balanced_in_plain_torch():
    assert not can_fuse_balance(torch.zeros(1, 1))


@pytest.mark.triton
def test_kernels_serve_batches_up_to_a_size():
    assert can_fuse_balance(torch.zeros(MOST, 1, device=DEVICE))
    assert not can_fuse_balance(torch.zeros(MOST + 1, 1, device=DEVICE))
