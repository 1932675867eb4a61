"""The machine a run is on: which device, and how much memory it took."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from traceback import clear_frames

import torch

from fedctta.errors import UserError
from fedctta.keys import Precision

_KEPT = {-3: 2**25, -1: 2**30}  # glibc's M_MMAP_THRESHOLD, the largest it takes, and M_TRIM_THRESHOLD, in bytes


def choose_device(name: str) -> torch.device:
    """Turn auto, cpu or cuda into a device that exists."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda was asked for and torch sees no CUDA GPU: use device=cpu or device=auto")
    return torch.device(name)


def hardware(device: torch.device) -> str:
    """Return the name of the machine's working part: the GPU, or the number of CPU threads used."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} CPU threads"


@contextmanager
def arithmetic(precision: Precision = "float32") -> Iterator[None]:
    """Repeatable kernels on CUDA, so that a seed gives the same numbers every time.

    float32 computes in full; tf32 rounds the factors of convolutions and matrix products to 10 bits, which is faster
    where these take the time; bf16 is a matter of the model's passes (see `Network`). Either is for clients: the
    server's part of a round is `exact`. On a CPU all are float32.
    """
    rounded = precision == "tf32"
    matmul = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = rounded
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=rounded):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = matmul


@contextmanager
def exact() -> Iterator[None]:
    """Matrix products in full float32, whatever precision `arithmetic` sets.

    A model that is averaged in every round would be rounded in every round, and 1/20 is not 1/20 in 10 bits.
    """
    matmul = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = matmul


@contextmanager
def enough_memory() -> Iterator[None]:
    """Say in one line that a GPU is full."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        clear_frames(error.__traceback__)  # as long as there is this error, they would hold what fills the GPU
        advice = "use lift=loop, a smaller batch, fewer clients, or device=cpu"
        raise UserError(f"the GPU ran out of memory: {advice}") from None


def total_memory(device: torch.device) -> int:
    """Return the bytes of memory that a device has, free or not."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def keep_freed_memory() -> bool:
    """Let the C library keep up to 1 GiB that this process frees, for what it computes next; return whether it does.

    glibc gives large tensors back to the system when they are freed and takes them again in the next round, page by
    page: a fifth of a round on a CPU. Other C libraries, and what the user has set, are left alone.
    """
    if any(name.startswith("MALLOC_") or name in ("GLIBC_TUNABLES", "LD_PRELOAD") for name in os.environ):
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # no glibc
        return False
    return all(bool(set_option(option, value)) for option, value in _KEPT.items())


def reset_peak_memory(device: torch.device) -> None:
    """Start measuring the peak anew, where the system allows it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif sys.platform == "linux":
        with suppress(OSError):  # where it is not permitted, the peak is that of the whole process so far
            Path("/proc/self/clear_refs").write_text("5")


def peak_memory_mb(device: torch.device) -> float:
    """Peak memory in MB: on the GPU, what torch allocated; on the CPU, the process's resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024
