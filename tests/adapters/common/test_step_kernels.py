"""Steps taken by kernels are those of plain torch."""

from __future__ import annotations

import pytest
import torch

from fedctta.adapters.common.optimisers import adam, adam_memory
from fedctta.adapters.cotta import restored
from fedctta.core import gpu_kernels
from fedctta.core.clients import Client, stack
from fedctta.core.randomness import keys

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def client(device):
    """Return three clients with kernels (channels last), vectors and a matrix, Adam's memory, and slopes."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"kernel": (6, 5, 3, 3), "scale": (7,), "shift": (9,), "matrix": (4, 6)}
    source = {name: torch.randn(shape, generator=generator).to(device) for name, shape in shapes.items()}
    source["kernel"] = source["kernel"].to(memory_format=torch.channels_last)
    clients = stack(Client(source, adam_memory(source)), 3)
    own = {name: t + torch.randn(t.shape, generator=generator).to(device) for name, t in clients.own.items()}
    memory = {name: t + torch.rand(t.shape, generator=generator).to(device) for name, t in clients.private.items()}
    slopes = {name: torch.randn(t.shape, generator=generator).to(device) for name, t in own.items()}
    return source, own, memory, slopes


@pytest.mark.triton
def test_a_step_of_adam_is_plain_torchs(monkeypatch):
    _, own, memory, slopes = client(DEVICE)
    step = torch.func.vmap(lambda *each: adam(*each, lr=1e-2))
    with torch.no_grad():
        found = step(own, slopes, memory)
        monkeypatch.setattr(gpu_kernels, "has_kernels", lambda: False)
        expected = step(own, slopes, memory)
    torch.testing.assert_close(found, expected)


@pytest.mark.triton
def test_the_same_numbers_are_restored(monkeypatch):
    source, own, _, _ = client(DEVICE)
    restore = torch.func.vmap(lambda weights, key: restored(weights, source, key, 0.3))
    with torch.no_grad():
        found = restore(own, keys(0, 3, DEVICE))
        monkeypatch.setattr(gpu_kernels, "has_kernels", lambda: False)
        expected = restore(own, keys(0, 3, DEVICE))
    assert all(torch.equal(found[name], expected[name]) for name in source)
    assert all(found[name].stride() == own[name].stride() for name in source)
