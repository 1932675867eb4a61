"""A long training in several stretches: its place is saved after an epoch, and another process goes on from there.

What is saved is all that the next epoch depends on: the network, the optimiser's moments and the generator of chances.
An interrupted training therefore ends with the same weights as an unbroken one. All that decides these weights is saved
too, and a training where something of it differs is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn

from fedctta.data.cache import sha256
from fedctta.errors import UserError
from fedctta.files import open_tensors, write_tensors
from fedctta.training.recipe import Recipe

EVERY = 60.0
"""Seconds from one save to the next."""

KIND = "training"


@dataclass
class Stretches:
    """Saves and restores the place of one training in a file.

    `identity` has by name all that decides the result, apart from the recipe and the weights to start from. Its values
    are text, numbers or None.
    """

    path: Path
    identity: Mapping[str, Any]
    every: float = EVERY
    _last: float = field(default_factory=monotonic)
    _whole_identity: dict[str, Any] = field(default_factory=dict)

    def restore(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, generator: torch.Generator, recipe: Recipe
    ) -> int:
        """Bring all three to where the file says, and return how many epochs are behind; none without a file."""
        self._last = monotonic()
        self._whole_identity = {**self.identity, **asdict(recipe), "starting weights": hash_weights(module)}
        if not self.path.exists():
            return 0
        refusal = f"checkpoint {self.path} is damaged, or no training's: delete it, or give another checkpoint"
        with open_tensors(self.path, KIND, refusal) as (header, file):
            saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is not a dictionary)
            epochs, told = int(header["epochs"]), dict(header["identity"])
        if other := [name for name, value in self._whole_identity.items() if value != told.get(name)]:
            raise UserError(
                f"checkpoint {self.path} is of another training (with other {', '.join(other)}): give the same keys and"
                " data, or another checkpoint"
            )
        module.load_state_dict(_part(saved, "module"))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _part(saved, "optimizer").items():
            number, _, key = name.partition(".")
            moments.setdefault(int(number), {})[key] = tensor
        optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
        generator.set_state(saved["generator"])
        return epochs

    def save_if_due(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        generator: torch.Generator,
        epochs: int,
    ) -> None:
        """Save the place after so many epochs, if the last time is long enough ago."""
        if monotonic() - self._last < self.every:
            return
        moments = {
            f"optimizer.{number}.{key}": value
            for number, kept in optimizer.state_dict()["state"].items()
            for key, value in kept.items()
            if isinstance(value, Tensor)
        }
        network = {f"module.{name}": tensor for name, tensor in module.state_dict().items()}
        header = {"epochs": epochs, "identity": self._whole_identity}
        write_tensors(self.path, {**network, **moments, "generator": generator.get_state()}, KIND, header)
        self._last = monotonic()


def hash_weights(module: nn.Module) -> str:
    """Return a hash of the names, shapes and values of a network's tensors."""
    tensors = module.state_dict().items()
    told = [(name, tuple(tensor.shape), sha256(tensor.cpu().numpy())) for name, tensor in tensors]
    return hashlib.sha256(repr(told).encode()).hexdigest()


def _part(saved: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin so, without that beginning."""
    return {key.removeprefix(f"{name}."): tensor for key, tensor in saved.items() if key.startswith(f"{name}.")}
