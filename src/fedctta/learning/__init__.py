"""What some client methods learn at the source, with labels, before anything is deployed.

`train_method` makes source clients out of labelled images and lets a method learn from them; what it returns is
written to a file that the adapter of the same name reads. Only here, and where source models are trained, do methods
see labels, and only those of the source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import torch
from numpy.typing import NDArray

from fedctta.errors import unknown
from fedctta.learning.heads import HeadTraining, learn_heads
from fedctta.learning.rates import RateTraining, learn_rates
from fedctta.learning.shards import Shards, deal
from fedctta.machine import hardware
from fedctta.network import Network, Tensors
from fedctta.registry import parameter_types, read

__all__ = [
    "METHODS",
    "HeadTraining",
    "RateTraining",
    "Shards",
    "deal",
    "learn_heads",
    "learn_rates",
    "read_training",
    "train_method",
]

OnRound = Callable[[int, int, float], None]
"""Called after every round with the rounds done, the rounds in all, and the mean loss of the last one."""

METHODS: dict[str, RateTraining | HeadTraining] = {"atp": RateTraining(), "fedthe": HeadTraining()}
"""The methods that learn at the source, and how by default."""


def read_training(name: str, options: Mapping[str, Any]) -> RateTraining | HeadTraining:
    """Return how a method learns: its entry in METHODS, changed by `options`; text is read as the field's type."""
    if name not in METHODS:
        raise unknown("method that learns at the source", name, METHODS)
    hints = parameter_types(type(METHODS[name]))
    for key in options:
        if key not in hints:
            raise unknown(f"option of method={name}", key, hints)
    return replace(METHODS[name], **{key: read(value, hints[key], key) for key, value in options.items()})


def train_method(
    name: str,
    network: Network,
    images: NDArray[Any],
    labels: NDArray[Any],
    options: Mapping[str, Any],
    on_round: OnRound | None = None,
) -> tuple[Tensors, dict[str, Any]]:
    """Let a method learn from labelled source images, uint8 [n, H, W, 3]: tensors for a file, and their card."""
    training = read_training(name, options)
    shards = deal(images, labels, training)
    if isinstance(training, RateTraining):
        tensors, losses = learn_rates(network, shards, training, on_round)
    else:
        tensors, losses = learn_heads(network, shards, training, on_round)
    card = {
        "method": name,
        "training": {key: str(value) if value == math.inf else value for key, value in asdict(training).items()},
        "domains": sorted(set(shards.domains)),
        "losses": losses,
        "torch": torch.__version__,
        "device": hardware(network.device),
        "date": datetime.now(UTC).date().isoformat(),
    }
    return {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}, card
