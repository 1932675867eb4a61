"""Where the server is fused, and where not."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from fedctta.aggregators import Uploads
from fedctta.aggregators.kin import fusing
from fedctta.core.appearance import NUMBERS

FUSED = SimpleNamespace()


@pytest.fixture
def kernels(monkeypatch):
    """Let kernels serve float32 on this machine, and give the module that has them, which needs Triton."""
    monkeypatch.setattr(fusing, "can_fuse", lambda tensor: tensor.dtype == torch.float32)
    monkeypatch.setitem(sys.modules, "fedctta.aggregators.kin.fused", FUSED)
    monkeypatch.setattr(sys.modules["fedctta.aggregators.kin"], "fused", FUSED, raising=False)


def uploads(clients=2, dtype=torch.float32, *own):
    return Uploads(dict(enumerate(own)), {"look": torch.zeros(clients, NUMBERS, dtype=dtype)}, torch.ones(clients) > 0)


def test_a_cpu_is_never_asked_for_triton():
    assert fusing.find_fused(uploads(), 32) is None


@pytest.mark.parametrize(
    ("said", "domains", "fused"),
    [
        (uploads(), 32, True),
        (uploads(fusing.MOST), fusing.WIDEST, True),
        (uploads(fusing.MOST + 1), 32, False),
        (uploads(), fusing.WIDEST + 1, False),
        (uploads(2, torch.float64), 32, False),
        (uploads(2, torch.float32, torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)), 32, False),
    ],
)
def test_what_the_kernels_hold_is_fused(said, domains, fused, kernels):
    assert fusing.find_fused(said, domains) is (FUSED if fused else None)
