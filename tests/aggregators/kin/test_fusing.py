"""Where the server is fused, and where not."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from fedctta.aggregators import Uploads
from fedctta.aggregators.kin import fusing

CPU = torch.device("cpu")


class OnGpu:
    """What is asked of a tensor on a GPU."""

    is_cuda = True
    device = CPU

    def __init__(self, clients=20, dtype=torch.float32):
        self.clients, self.dtype = clients, dtype

    def __len__(self):
        return self.clients


@pytest.fixture(autouse=True)
def anew():
    fusing.import_fused.cache_clear()
    yield
    fusing.import_fused.cache_clear()


def uploads(look, own=()):
    return Uploads(dict(enumerate(own)), {"look": look}, torch.ones(1, dtype=torch.bool))


def test_a_cpu_is_never_asked_for_triton(monkeypatch):
    monkeypatch.setattr(fusing, "import_fused", lambda device: pytest.fail("asked"))
    assert fusing.find_fused(uploads(torch.zeros(2, 12)), 32) is None


@pytest.mark.parametrize(
    ("said", "domains", "fused"),
    [
        (uploads(OnGpu()), 32, True),
        (uploads(OnGpu(fusing.MOST)), fusing.WIDEST, True),
        (uploads(OnGpu(fusing.MOST + 1)), 32, False),
        (uploads(OnGpu()), fusing.WIDEST + 1, False),
        (uploads(OnGpu(dtype=torch.float64)), 32, False),
        (uploads(OnGpu(), [OnGpu(), OnGpu(dtype=torch.bfloat16)]), 32, False),
    ],
)
def test_on_a_gpu_what_the_kernels_hold_is_fused(said, domains, fused, monkeypatch):
    monkeypatch.setattr(fusing, "import_fused", lambda device: fusing)
    assert (fusing.find_fused(said, domains) is not None) == fused


def test_without_triton_nothing_is_fused(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "fedctta.aggregators.kin.fused", raising=False)
    monkeypatch.delitem(sys.modules, "fedctta.aggregators.kin.kernels", raising=False)
    assert fusing.import_fused(CPU) is None


@pytest.mark.parametrize("works", [True, False])
def test_where_triton_does_not_work_nothing_is_fused(works, monkeypatch):
    def probe(device):
        if not works:
            raise RuntimeError("no C compiler")

    fused = SimpleNamespace(probe=probe)
    monkeypatch.setitem(sys.modules, "fedctta.aggregators.kin.fused", fused)
    monkeypatch.setattr(sys.modules["fedctta.aggregators.kin"], "fused", fused, raising=False)
    assert fusing.import_fused(CPU) is (fused if works else None)


def test_another_gpu_than_the_current_one_is_served_plainly(monkeypatch):
    fused = SimpleNamespace(probe=lambda device: None)
    monkeypatch.setitem(sys.modules, "fedctta.aggregators.kin.fused", fused)
    monkeypatch.setattr(sys.modules["fedctta.aggregators.kin"], "fused", fused, raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert fusing.import_fused(torch.device("cuda:1")) is fused
    assert fusing.import_fused(torch.device("cuda:0")) is None
