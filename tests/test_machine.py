"""Devices, exact arithmetic and memory."""

from __future__ import annotations

import os
import sys
import weakref
from pathlib import Path

import pytest
import torch

from fedctta.errors import UserError
from fedctta.machine import (
    arithmetic,
    choose_device,
    enough_memory,
    exact,
    keep_freed_memory,
    peak_memory_mb,
    reset_peak_memory,
    total_memory,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "available", "expected"),
    [("auto", False, "cpu"), ("auto", True, "cuda"), ("cpu", True, "cpu"), ("cuda", True, "cuda")],
)
def test_the_device_is_one_that_exists(monkeypatch, name, available, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    assert choose_device(name) == torch.device(expected)


def test_a_gpu_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"device=cuda .* no CUDA GPU: use device=cpu or device=auto"):
        choose_device("cuda")


def _switches() -> tuple[bool, ...]:
    cudnn = torch.backends.cudnn
    return torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark


@pytest.fixture
def fast_arithmetic():
    """Switch on all that makes CUDA fast and inexact, for one test."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = True
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=True):
        yield
    matmul.allow_tf32 = before


@pytest.mark.usefixtures("fast_arithmetic")
def test_exact_is_for_matrix_products_and_a_while():
    with exact():
        assert _switches() == (False, True, False, True)
    assert _switches() == (True, True, False, True)


@pytest.mark.usefixtures("fast_arithmetic")
@pytest.mark.parametrize("fails", [False, True])
def test_arithmetic_is_exact_inside_and_as_before_outside(fails):
    try:
        with arithmetic():
            assert _switches() == (False, False, True, False)
            if fails:
                raise ValueError
    except ValueError:
        assert fails
    assert _switches() == (True, True, False, True)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_peak_is_that_of_this_process_in_mb():
    reset_peak_memory(CPU)
    ballast = bytearray(40 * 2**20)
    ballast[::4096] = b"x" * len(ballast[::4096])  # touched, so that it counts
    status = Path("/proc/self/status").read_text()
    resident = int(status.split("VmRSS:")[1].split()[0]) / 1024
    assert resident <= peak_memory_mb(CPU) + 1
    assert 40 < peak_memory_mb(CPU) < 20 * resident


@pytest.mark.skipif(sys.platform == "win32", reason="no resource module there")
def test_elsewhere_the_system_is_asked(monkeypatch):
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    monkeypatch.setattr(sys, "platform", "darwin")  # counts bytes
    assert peak_memory_mb(CPU) >= most / 2**20
    monkeypatch.setattr(sys, "platform", "freebsd")  # counts KiB
    assert most / 1024 <= peak_memory_mb(CPU) < most
    reset_peak_memory(CPU)


def test_a_system_that_does_not_permit_the_reset_is_no_obstacle(monkeypatch):
    def refuse(self, text):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(Path, "write_text", refuse)
    reset_peak_memory(CPU)


@pytest.mark.gpu
def test_on_a_gpu_the_peak_is_what_torch_allocated():
    gpu = choose_device("cuda")
    reset_peak_memory(gpu)
    before = peak_memory_mb(gpu)
    ballast = torch.zeros(32 * 2**20, dtype=torch.uint8, device=gpu)
    del ballast
    assert peak_memory_mb(gpu) - before == pytest.approx(32, abs=1)
    reset_peak_memory(gpu)
    assert peak_memory_mb(gpu) == pytest.approx(before, abs=1)


def test_memory_is_at_least_what_this_process_has_taken():
    assert total_memory(torch.device("cpu")) > 1e6 * peak_memory_mb(torch.device("cpu")) > 0


def test_a_full_gpu_is_said_in_one_line_and_what_filled_it_is_let_go():
    held = []

    def fill():
        ballast = torch.zeros(3)
        held.append(weakref.ref(ballast))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    with pytest.raises(UserError, match="the GPU ran out of memory: use lift=loop"), enough_memory():
        fill()
    assert held[0]() is None


def test_freed_memory_is_kept_where_glibc_can(monkeypatch):
    for name in [name for name in os.environ if name.startswith("MALLOC_") or name in ("GLIBC_TUNABLES", "LD_PRELOAD")]:
        monkeypatch.delenv(name)
    asked = {}

    class Library:
        def mallopt(self, option, value):
            asked[option] = value
            return 1

    monkeypatch.setattr("fedctta.machine.ctypes.CDLL", lambda name: Library())
    assert keep_freed_memory()
    assert asked == {-3: 2**25, -1: 2**30}
    monkeypatch.setattr("fedctta.machine.ctypes.CDLL", lambda name: object())
    assert not keep_freed_memory()


def test_what_the_user_has_set_for_memory_stays(monkeypatch):
    monkeypatch.setattr("fedctta.machine.ctypes.CDLL", lambda name: pytest.fail("asked"))
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "100000")
    assert not keep_freed_memory()
