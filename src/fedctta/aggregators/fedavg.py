"""FedAvg: W_ij = 1 / N. Batches are equally large, so no client weighs more than another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedctta.aggregators import Aggregator, Server, Uploads
from fedctta.core.network import Tensors


@dataclass(frozen=True)
class FedAvg(Aggregator):
    """Average all models equally."""

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg"
    colour: ClassVar[str] = "#e69f00"
    baseline: ClassVar[bool] = True

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Tensor, Tensors]:
        """W = 11' / N."""
        n = len(uploads.active)
        return torch.full((n, n), 1 / n, device=uploads.active.device), memory
