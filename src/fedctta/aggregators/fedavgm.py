"""FedAvgM: FedAvg whose server moves with momentum.

With g the server's model (at first the source model), m its momentum (at first 0) and mean = (1/A) sum_i theta_i over
the A clients present:

    m <- beta m + (mean - g)                  variant=code: m <- beta m + (1 - beta) (mean - g)
    g <- g + m

and everyone present receives g. The first round comes to m = mean - g, g = mean, in the published code too; that code
starts over like this with every new corruption (`restart=50` there, in rounds; 0 is never).

g is not an average any more: a variance that fell for some rounds can be carried below zero, where there is no
standard deviation to normalise with. It stops at zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedctta.aggregators import Aggregator, Server, Uploads
from fedctta.aggregators.vectors import first, for_active
from fedctta.errors import UserError
from fedctta.network import Tensors


@dataclass(frozen=True)
class FedAvgM(Aggregator):
    """Average all models equally; the server moves there with momentum (variant=code: a damped one, as published)."""

    name: ClassVar[str] = "fedavgm"
    momentum: float = 0.9
    variant: Literal["paper", "code"] = "paper"
    restart: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise UserError(f"fedavgm.momentum={self.momentum} must be at least 0 and below 1")
        if self.restart < 0:
            raise UserError(f"fedavgm.restart={self.restart} must not be negative")

    def init(self, server: Server) -> Tensors:
        """Count rounds; the model and its momentum join when it is known what clients own."""
        return {"round": torch.zeros((), dtype=torch.int64, device=server.network.device)}

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Tensor, Tensors]:
        """W = 11' / N."""
        memory = dict(memory)
        for name in uploads.own:
            memory.setdefault(f"global.{name}", server.network.state[name].contiguous())
            memory.setdefault(f"momentum.{name}", torch.zeros_like(memory[f"global.{name}"]))
        n = len(uploads.active)
        return torch.full((n, n), 1 / n, device=uploads.active.device), memory

    def step(self, mixed: Tensors, active: Tensor, memory: Tensors) -> tuple[Tensors, Tensors]:
        """Move the server's model towards the mean and send it."""
        memory, sent = dict(memory), {}
        anew = memory["round"] % self.restart == 0 if self.restart else memory["round"] == 0
        for name, tensor in mixed.items():
            g, m = memory[f"global.{name}"], memory[f"momentum.{name}"]
            g, m = self.move(g, m, first(tensor, active), anew)
            memory[f"global.{name}"] = g = g.clamp_min(0) if name.endswith("running_var") else g
            memory[f"momentum.{name}"] = m
            sent[name] = for_active(active, g, tensor)
        memory["round"] = memory["round"] + 1
        return sent, memory

    def move(self, g: Tensor, m: Tensor, mean: Tensor, anew: Tensor) -> tuple[Tensor, Tensor]:
        """Return the server's model and momentum after one round, which may start anew."""
        gain = 1.0 if self.variant == "paper" else 1 - self.momentum
        moving = self.momentum * m + gain * (mean - g)
        return torch.where(anew, mean, g + moving), torch.where(anew, mean - g, moving)
