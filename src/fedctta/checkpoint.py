"""A run's place in its stream, saved whole or not at all."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedctta.errors import UserError
from fedctta.files import whole
from fedctta.network import Tensors


def save_checkpoint(path: Path, fingerprint: str, rounds: int, tensors: Tensors) -> None:
    """Write the state after `rounds` whole rounds."""
    header = {"checkpoint": json.dumps({"fingerprint": fingerprint, "rounds": rounds})}
    # Copies, because the format refuses tensors that share memory and a method may give one under two names.
    copies = {n: t.detach().to("cpu", copy=True, memory_format=torch.contiguous_format) for n, t in tensors.items()}
    with whole(path) as part:
        save_file(copies, part, metadata=header)


def load_checkpoint(path: Path, fingerprint: str) -> tuple[int, Tensors]:
    """Read (rounds played, tensors), refusing a damaged file and one of another experiment."""
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads(file.metadata()["checkpoint"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
            rounds, made_by = int(header["rounds"]), header["fingerprint"]
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"checkpoint {path} is damaged: delete it, or run without --resume") from error
    if made_by != fingerprint:
        raise UserError(f"checkpoint {path} belongs to other settings: choose another --out, or run without --resume")
    return rounds, tensors


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
