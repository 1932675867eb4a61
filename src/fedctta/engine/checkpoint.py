"""A run's place in its stream, saved completely or not at all.

Tensors are restored in the order and with the strides they had. Both decide in which order a sum is computed, and so
how it rounds: with another layout a resumed run would differ from an uninterrupted one.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor

from fedctta.core.network import Tensors
from fedctta.errors import UserError
from fedctta.files import open_tensors, write_tensors


def save_checkpoint(path: Path, fingerprint: str, rounds: int, tensors: Tensors) -> None:
    """Write the state after `rounds` whole rounds."""
    strides = {name: tensor.stride() for name, tensor in tensors.items()}
    header = {"fingerprint": fingerprint, "rounds": rounds, "strides": strides}
    write_tensors(path, tensors, "checkpoint", header)


def load_checkpoint(path: Path, fingerprint: str, device: torch.device | str = "cpu") -> tuple[int, Tensors]:
    """Read (rounds played, tensors on the device), refusing a damaged file and one of another experiment."""
    damaged = f"checkpoint {path} is damaged: delete it, or run without --resume"
    with open_tensors(path, "checkpoint", damaged) as (header, file):
        tensors = {n: _lay_out(file.get_tensor(n), strides, device) for n, strides in header["strides"].items()}
        rounds, made_by = int(header["rounds"]), header["fingerprint"]
    if made_by != fingerprint:
        raise UserError(f"checkpoint {path} belongs to other settings: choose another --out, or run without --resume")
    return rounds, tensors


def _lay_out(tensor: Tensor, strides: list[int], device: torch.device | str) -> Tensor:
    """Return the tensor on the device with these strides; along an axis of stride 0 all values are the same."""
    once = [1 if stride == 0 else size for size, stride in zip(tensor.shape, strides, strict=True)]
    place = torch.empty_strided(once, strides, dtype=tensor.dtype, device=device)
    return place.copy_(tensor[tuple(map(slice, once))]).expand(tensor.shape)


class Interrupt:
    """Whether the user has pressed Ctrl-C."""

    asked = False


@contextmanager
def postponed_interrupt() -> Iterator[Interrupt]:
    """Let a first Ctrl-C only set a flag, so that a round is finished before stopping; a second one stops at once."""
    interrupt = Interrupt()

    def note(signum: int, frame: FrameType | None) -> None:
        if interrupt.asked:
            raise KeyboardInterrupt
        interrupt.asked = True

    try:
        previous = signal.signal(signal.SIGINT, note)
    except ValueError:  # not the main thread: signals go elsewhere
        yield interrupt
        return
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, previous)
