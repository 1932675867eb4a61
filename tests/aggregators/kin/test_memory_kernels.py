"""Single kernels: what several of them, one after another, might hide (`test_fused`)."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from fedctta.aggregators.common.groups import Groups

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.triton
def test_w_is_restricted_as_by_the_plain_path():
    """With late uploads, a client that does not receive, and one whose row has no weight left."""
    kernels = import_module("fedctta.aggregators.kin.memory_kernels")
    generator, n, domains = torch.Generator().manual_seed(0), 5, 3
    takes, gives = torch.rand(n, domains, generator=generator), torch.rand(domains, n, generator=generator)
    takes[4], gives[0, :3] = torch.tensor([1.0, 0.0, 0.0]), 0.0
    trust, receive = torch.tensor([1.0, 0.0, 0.5, 0.0, 0.0]), torch.tensor([True, False, True, True, True])
    plain = Groups(takes, gives, torch.rand(n, generator=generator))
    expected = plain.restricted(receive, trust)
    assert expected.alone[4] == 1
    on_device = [part.to(DEVICE) for part in plain]
    found = [torch.empty_like(part) for part in on_device]
    kernels.restrict_kernel[(2,)](
        *on_device, receive.to(DEVICE).view(torch.uint8), trust.to(DEVICE), *found, n, domains, N=4, K=4, M=2
    )
    took, gave, left = (part.cpu() for part in found)
    torch.testing.assert_close(Groups(took, gave, left).matrix(), expected.matrix())
