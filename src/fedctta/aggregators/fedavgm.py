"""FedAvgM: FedAvg whose server moves with momentum.

With g the server's model (at first the source model), m its momentum (at first 0) and mean = sum_i t_i theta_i / sum_i
t_i over the uploads there are, t_i being 1, or less if the upload is late:

    m <- beta m + (mean - g)                  variant=code: m <- beta m + (1 - beta) (mean - g)
    g <- g + m

and everyone present receives g. Who joins receives it before it adapts: a client that started from an older model would
push g back by their whole distance, and momentum would repeat that push 1 / (1 - beta) times over. If nothing comes, g
and m stay. The first round comes to m = mean - g, g = mean, in the published code too; that code starts over like this
with every new corruption (`restart=50` there, in rounds; 0 is never).

Momentum is for what clients learn by steps from g. BatchNorm statistics are measured anew, wherever g is: their mean
would be approached in oscillations that take 20 rounds to fade, with 6.8 times the variance of the clients' mean for
beta = 0.9. So g takes their mean as it is. The published code moves them with momentum as well (`variant=code`); since
that can carry a variance below zero, it stops there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedctta.aggregators import Server, Uploads
from fedctta.aggregators.common.server_model import ServerModel
from fedctta.aggregators.common.vectors import average_all, counted
from fedctta.core.network import Tensors
from fedctta.core.tensors import each_element, named
from fedctta.ranges import CountOrZero, ShareBelowOne


@dataclass(frozen=True)
class FedAvgM(ServerModel):
    """Average all models equally; the server moves there with momentum (variant=code: a damped one, as published)."""

    name: ClassVar[str] = "fedavgm"
    title: ClassVar[str] = "FedAvgM"
    momentum: ShareBelowOne = 0.9
    variant: Literal["paper", "code"] = "paper"
    restart: CountOrZero = 0

    def init(self, server: Server) -> Tensors:
        """Count rounds; the model and its momentum join when it is known what clients own."""
        return {"round": torch.zeros((), dtype=torch.int64, device=server.network.device)}

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Tensor, Tensors]:
        """Move the server's model towards the mean of what came; W = 11' / N."""
        trust, n = counted(uploads), len(uploads.active)
        came = (trust > 0).any()
        anew = memory["round"] % self.restart == 0 if self.restart else memory["round"] == 0
        models = {n: memory.get(f"global.{n}", server.network.state[n].contiguous()) for n in uploads.own}
        means = average_all(uploads.own, trust, models)
        measured = server.network.statistics if self.variant == "paper" else {}
        learnt = {name: g for name, g in models.items() if name not in measured}
        momenta = {name: memory.get(f"momentum.{name}", torch.zeros_like(g)) for name, g in learnt.items()}

        def move(g: Tensor, m: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
            there, moving = self.move(g, m, mean, anew)
            return torch.where(came, there, g), torch.where(came, moving, m)

        there, moving = each_element(move, learnt, momenta, means) if learnt else ({}, {})
        there = {n: t.clamp_min(0) if n.endswith("running_var") else t for n, t in there.items()}
        new = named("global", means | there) | named("momentum", moving) | {"round": memory["round"] + came}
        return torch.full((n, n), 1 / n, device=trust.device), {**memory, **new}

    def move(self, g: Tensor, m: Tensor, mean: Tensor, anew: Tensor) -> tuple[Tensor, Tensor]:
        """Return the server's model and momentum after one round, which may start anew."""
        gain = 1.0 if self.variant == "paper" else 1 - self.momentum
        moving = self.momentum * m + gain * (mean - g)
        return torch.where(anew, mean, g + moving), torch.where(anew, mean - g, moving)
