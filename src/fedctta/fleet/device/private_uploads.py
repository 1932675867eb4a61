"""Statistics with noise from the operating system, for devices whose method sends the statistics of one batch.

An upload is `uploads.privacy.Noise` on the batch, with the deviation `noise` in sensitivities. A batch is released
once: asked again, the device repeats the same numbers. So **one image is in one release**, which is (epsilon,
delta)-private. A scene that does not change is in all of them. Releases r = 1..T with noise_r are together one Gaussian
mechanism with

    m^2 = sum_r 1 / noise_r^2,      epsilon = epsilon_of(m, delta),

which the accountant adds up over restarts, written to disk before a release leaves the device. With a `budget`, nothing
more is released once epsilon would be above it.
"""

from __future__ import annotations

import json
import os
from math import inf, sqrt
from pathlib import Path

import torch
from torch import Tensor

from fedctta.core.network import Network, Tensors
from fedctta.core.system_randomness import draw_normal
from fedctta.errors import UserError
from fedctta.files import whole
from fedctta.uploads.privacy import Draw, Noise, epsilon_of
from fedctta.uploads.robust import BOUND


class BudgetSpent(Exception):
    """Nothing more may be released; the message says why."""


class Accountant:
    """Adds up what all releases of a device have cost."""

    def __init__(self, path: Path, noise: float, delta: float, budget: float | None = None) -> None:
        self._path, self._noise, self._delta, self._budget = path, noise, delta, budget
        self.releases, self._squared = 0, 0.0
        if path.exists():
            try:
                told = json.loads(path.read_text(encoding="utf-8"))
                self.releases, self._squared = int(told["releases"]), float(told["ratio_squared"])
                if not 0 <= self._squared < inf:
                    raise ValueError(self._squared)
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise UserError(
                    f"{path} cannot be read, and nobody knows what was sent: restore it, or choose another --state"
                ) from error

    def __str__(self) -> str:
        """Say what was released, and what it cost."""
        return (
            f"{self.releases} uploads with noise; epsilon {epsilon_of(1 / self._noise, self._delta):.3g} for an image,"
            f" {self.epsilon:.3g} for a scene in all of them, at delta {self._delta:g}"
        )

    @property
    def epsilon(self) -> float:
        """For what is in every release so far."""
        return epsilon_of(sqrt(self._squared), self._delta) if self._squared else 0.0

    def spend(self) -> None:
        """Count one more release, on disk too, or refuse it."""
        squared = self._squared + 1 / self._noise**2
        if self._budget is not None and not epsilon_of(sqrt(squared), self._delta) <= self._budget:
            raise BudgetSpent(f"--budget {self._budget:g} is spent after {self.releases} uploads")
        told = {"releases": self.releases + 1, "ratio_squared": squared, "delta": self._delta}
        told["epsilon"] = epsilon_of(sqrt(squared), self._delta)
        with whole(self._path, private=True) as part:
            part.write_text(json.dumps(told) + "\n", encoding="utf-8")
            with part.open("rb") as file:
                os.fsync(file.fileno())
        self.releases, self._squared = self.releases + 1, squared


class PrivateUploads:
    """Releases every batch once."""

    def __init__(self, noise: Noise, accountant: Accountant) -> None:
        self._noise, self.accountant = noise, accountant
        self._batch: Tensor | None = None
        self._released: Tensors = {}

    def release(self, network: Network, x: Tensor) -> Tensors:
        """Return the noisy statistics of the images x[B, ...]: the same ones whenever it is asked."""
        if x is not self._batch:
            self.accountant.spend()
            statistics = self._noise.release_with(network, _draw(x.device), x)
            self._released = {name: _shorten(tensor, network.state[name]) for name, tensor in statistics.items()}
            self._batch = x
        return self._released


def _draw(device: torch.device) -> Draw:
    """Return what gives every layer new numbers of the operating system."""
    return lambda layer, shape: draw_normal(shape.numel()).view(shape).to(device, torch.float32)


def _shorten(tensor: Tensor, source: Tensor) -> Tensor:
    """Pull noisy numbers so near to the source's that a server can believe them: it refuses longer tensors."""
    apart, length = tensor - source, float(source.norm())
    room = 0.99 * BOUND * (length + source.numel() ** 0.5) - length
    nearer: Tensor = source + apart * (room / apart.norm().clamp_min(1e-12)).clamp_max(1)
    return nearer
