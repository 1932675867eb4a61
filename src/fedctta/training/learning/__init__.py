"""What some client methods learn at the source, with labels, before anything is deployed.

`train_method` makes source clients out of labelled images and lets a method learn from them; what it returns is
written to a file that the adapter of the same name reads. Only here, and where source models are trained, do methods
see labels, and only those of the source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import torch
from numpy.typing import NDArray

from fedctta.core.network import Network, Tensors
from fedctta.errors import unknown
from fedctta.machine import hardware
from fedctta.registry import Registry, parameter_types, read
from fedctta.training.learning.shards import OnRound, Shards, Sharing, deal

__all__ = ["OnRound", "Shards", "Sharing", "deal", "read_training", "train_method", "trainings"]

trainings: Registry[Sharing] = Registry("method that learns at the source", __name__)
"""How adapters learn, by the adapter's name: one file each."""


def read_training(name: str, options: Mapping[str, Any]) -> Sharing:
    """Return how a method learns: by default, or as changed by `options`; text is read as the field's type."""
    known = trainings.classes()
    if name not in known:
        raise unknown(trainings.kind, name, known)
    hints = parameter_types(known[name])
    for key in options:
        if key not in hints:
            raise unknown(f"option of method={name}", key, hints)
    return known[name](**{key: read(value, hints[key], key) for key, value in options.items()})


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
    tensors, losses = training.learn(network, shards, on_round)
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
