"""FedAvg: W_ij = 1 / N. Batches are equally large, so no client weighs more than another.

W is one group: the mean is computed once, and costs N, not N^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedctta.aggregators import Aggregator, Server, Uploads
from fedctta.aggregators.common.groups import Groups
from fedctta.core.network import Tensors


@dataclass(frozen=True)
class FedAvg(Aggregator):
    """Average all models equally."""

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg"
    colour: ClassVar[str] = "#e69f00"
    baseline: ClassVar[bool] = True

    @property
    def only_mixes(self) -> bool:
        """W does not depend on models."""
        return True

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Groups, Tensors]:
        """W = 11' / N."""
        n, device = len(uploads.active), uploads.active.device
        takes, gives = torch.ones(n, 1, device=device), torch.full((1, n), 1 / n, device=device)
        return Groups(takes, gives, torch.zeros(n, device=device)), memory
