"""A run's place in its stream, saved regularly, and the seconds it has played: those of saving do not count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Protocol

import torch

from fedctta.core.network import Tensors
from fedctta.engine.checkpoint import load_checkpoint, save_checkpoint
from fedctta.engine.rounds import Federation, State, flatten, unflatten
from fedctta.engine.tally import Tally


class Saved(Protocol):
    """What is saved and restored with a run."""

    def tensors(self) -> Tensors:
        """Return everything a resumed run needs."""

    def restore(self, saved: Tensors, path: Path) -> None:
        """Restore what `tensors` returned."""


class Witness(Saved, Protocol):
    """Measures the state after every round."""

    def measure(self, federation: Federation, state: State, t: int) -> None:
        """Measure the state after round t."""


class Saver:
    """Saves and restores state, tally and witnesses of a run; without a path it only counts seconds."""

    def __init__(
        self, path: Path | None, fingerprint: str, tally: Tally, witnesses: Sequence[Saved], every: float
    ) -> None:
        self._path, self._fingerprint, self._every = path, fingerprint, every
        self._tally, self._witnesses = tally, witnesses
        self._began = self._last = perf_counter()

    def restore(self, state: State, device: torch.device) -> tuple[State, int]:
        """Return the state and the rounds played of what is saved, or the state given and none; then begin to count."""
        rounds = 0
        if self._path is not None and self._path.exists():
            rounds, saved = load_checkpoint(self._path, self._fingerprint, device)
            state = unflatten(state, saved, self._path)
            self._tally.restore(saved, self._path)
            for witness in self._witnesses:
                witness.restore(saved, self._path)
        self._began = self._last = perf_counter()
        return state, rounds

    def save(self, state: State, rounds: int) -> None:
        """Save the state after `rounds` whole rounds."""
        if self._path is None:
            return
        with self.paused():
            tensors = {**flatten(state), **self._tally.tensors()}
            for witness in self._witnesses:
                tensors |= witness.tensors()
            save_checkpoint(self._path, self._fingerprint, rounds, tensors)
        self._last = perf_counter()

    def save_if_due(self, state: State, rounds: int) -> None:
        """Save if the last time is long enough ago."""
        if perf_counter() - self._last > self._every:
            self.save(state, rounds)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the seconds of what is done inside."""
        self.count()
        yield
        self._began = perf_counter()

    def count(self) -> None:
        """Add the seconds since the last call to those of the run."""
        now = perf_counter()
        self._tally.seconds += now - self._began
        self._began = now
