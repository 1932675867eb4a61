"""No collaboration: W = I."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedctta.aggregators import Aggregator, Server, Uploads
from fedctta.core.network import Tensors


@dataclass(frozen=True)
class Local(Aggregator):
    """Every client keeps its own model; nothing is sent."""

    name: ClassVar[str] = "local"
    title: ClassVar[str] = "Local"
    colour: ClassVar[str] = "#56b4e9"
    baseline: ClassVar[bool] = True
    communicates: ClassVar[bool] = False

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Tensor, Tensors]:
        """W = I."""
        return torch.eye(len(uploads.active), device=uploads.active.device), memory
