"""Where kernels are used, and how arguments of vmapped functions are brought into one form."""

from __future__ import annotations

import pytest
import torch

from fedctta.core.gpu_kernels import bring_to_front, can_fuse, has_kernels


def test_a_cpu_has_no_use_for_kernels():
    assert not can_fuse(torch.zeros(2))


@pytest.mark.gpu
def test_kernels_serve_full_precision_on_a_gpu():
    assert has_kernels()
    assert can_fuse(torch.zeros(2, device="cuda"))
    assert not can_fuse(torch.zeros(2, device="cuda", dtype=torch.bfloat16))


def test_clients_come_first_and_what_they_share_is_repeated():
    class Info:
        batch_size = 3

    own, shared = torch.rand(2, 3), torch.rand(4)
    first, second, third = bring_to_front(Info, (1, None, None), (own, shared, None))
    assert torch.equal(first, own.T)
    assert second.shape == (3, 4)
    assert third is None
