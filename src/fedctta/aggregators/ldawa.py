"""L-DAWA: layer by layer, models that point away from the global one count less.

For every tensor l, with g the global model of the last round in which anything came (in the first: FedAvg):

    delta_jl = max(0, cos(theta_jl, g_l))
    g_l      = sum_j delta_jl theta_jl / sum_j delta_jl        so W_l,ij = delta_jl / sum_k delta_kl

Single numbers are averaged plainly, and so is a tensor whose cosines say nothing (a zero vector, or all negative).

Dividing by the sum of delta is a reading that keeps W an average. The authors' released code divides by the number of
clients N instead, and so does the code of the test-time papers, which takes cosines as they are:

    delta_jl = cos(theta_jl, g_l),  0 for a zero vector         g_l = (1/N) sum_j delta_jl theta_jl     (`variant=code`)

which shrinks every tensor by the mean delta, BatchNorm statistics among them, and turns a model that points away. Close
to the source model every delta is about 1 and either reading about FedAvg. As a collaboration, W_l,ij is again
delta_jl / sum_k delta_kl, which may be negative here; where the sum is 0, g_l is 0.

The test-time code starts over with FedAvg at every new corruption (`restart=50` there, in rounds; 0 is never).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.aggregators import Aggregator, Mixing, Server, Uploads
from fedctta.aggregators.common.vectors import average, counted, for_active
from fedctta.core.network import Tensors
from fedctta.errors import UserError


@dataclass(frozen=True)
class LDAWA(Aggregator):
    """Weight every tensor of a model by its cosine to the global one (variant=code: without renormalising)."""

    name: ClassVar[str] = "ldawa"
    title: ClassVar[str] = "L-DAWA"
    variant: Literal["paper", "code"] = "paper"
    restart: int = 0

    def __post_init__(self) -> None:
        if self.restart < 0:
            raise UserError(f"ldawa.restart={self.restart} must not be negative")

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Mixing, Tensors]:
        """One W for every tensor, its rows all alike; remember the global model, and what `step` scales by."""
        memory, active, n, trust = dict(memory), uploads.active, len(uploads.active), counted(uploads)
        if not uploads.own:  # nothing is adapted: all models are the source model
            return torch.full((n, n), 1 / n, device=active.device), memory
        weights, agree = {}, agreement if self.variant == "paper" else cosines_to
        present = active.float()
        played = memory.get("round", torch.zeros((), dtype=torch.int64, device=active.device))
        if self.restart:
            memory["round"] = played + 1
        for name, tensor in uploads.own.items():
            delta = agree(tensor, memory.get(f"global.{name}"), active)
            if self.restart:
                delta = torch.where(played % self.restart == 0, present, delta)
            total = delta.sum()
            weights[name] = torch.where(total == 0, present / present.sum(), delta / total).expand(n, n)
            before = memory.get(f"global.{name}", torch.zeros_like(tensor[0]))  # 0: nothing to compare with yet
            if self.variant == "paper":
                memory[f"global.{name}"] = average(tensor, delta * trust, before)
            else:
                memory[f"scale.{name}"] = average(delta, trust, torch.ones_like(trust[0]))
                memory[f"global.{name}"] = average(delta.view(-1, *[1] * (tensor.dim() - 1)) * tensor, trust, before)
        return weights, memory

    def step(
        self, server: Server, uploads: Uploads, mixed: Tensors, receive: Tensor, memory: Tensors
    ) -> tuple[Tensors, Tensors]:
        """With variant=code, undo the normalisation."""
        if self.variant == "code":
            mixed = {n: for_active(receive, memory[f"scale.{n}"] * t, t) for n, t in mixed.items()}
        return mixed, memory


def cosines_to(stack: Tensor, reference: Tensor | None, active: Tensor) -> Tensor:
    """delta[N] of the published code: cosines as they are, those with a zero vector 0."""
    if reference is None or stack.dim() == 1:
        return active.to(stack.dtype)
    cosine = F.cosine_similarity(stack.reshape(len(stack), -1), reference.reshape(1, -1))
    return torch.where(active, cosine, 0)


def agreement(stack: Tensor, reference: Tensor | None, active: Tensor) -> Tensor:
    """delta[N] of one tensor of all clients: 0 for the absent, 1 for all present where there is nothing to compare."""
    present = active.to(stack.dtype)
    if reference is None or stack.dim() == 1:
        return present
    rows = stack.reshape(len(stack), -1)
    cosine = F.cosine_similarity(rows, reference.reshape(1, -1), eps=torch.finfo(stack.dtype).tiny)
    delta = torch.where(rows.any(1) & reference.any(), cosine.clamp(0, 1), 1) * present
    return torch.where(delta.sum() > 0, delta, present)
