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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedctta.aggregators import Aggregator, Server, Uploads
from fedctta.aggregators.common.mixing import Mixing
from fedctta.aggregators.common.vectors import counted, for_active
from fedctta.core.network import Tensors
from fedctta.core.tensors import constant
from fedctta.ranges import CountOrZero


@dataclass(frozen=True)
class LDAWA(Aggregator):
    """Weight every tensor of a model by its cosine to the global one (variant=code: without renormalising)."""

    name: ClassVar[str] = "ldawa"
    title: ClassVar[str] = "L-DAWA"
    variant: Literal["paper", "code"] = "paper"
    restart: CountOrZero = 0

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Mixing, Tensors]:
        """One W for every tensor, its rows all alike; remember the global model, and what `step` scales by."""
        n, present = len(uploads.active), uploads.active.float()
        if not uploads.own:  # nothing is adapted: all models are the source model
            return torch.full((n, n), 1 / n, device=present.device), memory
        forms = collect_forms(uploads.own)
        names = [name for form in forms for name in form]
        stacks = [stack_models(uploads.own, form) for form in forms]
        globe = [stack_globe(memory, form, stack) for form, stack in zip(forms, stacks, strict=True)]
        delta = present.expand(len(names), n)
        if f"global.{names[0]}" in memory:
            agree = agreement if self.variant == "paper" else cosines_to
            inner, lengths, length = (torch.cat(part) for part in zip(*map(measure, stacks, globe), strict=True))
            compared = agree(inner, lengths, length, uploads.active)
            single = constant(tuple(uploads.own[name].dim() == 1 for name in names), uploads.active)
            delta = torch.where(single[:, None], delta, compared)
        memory = dict(memory)
        if self.restart:
            played = memory.get("round", torch.zeros((), dtype=torch.int64, device=present.device))
            memory["round"] = played + 1
            delta = torch.where(played % self.restart == 0, present, delta)
        total = delta.sum(1, keepdim=True)
        weights = torch.where(total == 0, present / present.sum(), delta / total)
        means, scales = self._average(stacks, globe, delta, counted(uploads))
        if self.variant == "code":
            memory |= zip((f"scale.{name}" for name in names), scales.unbind(), strict=True)
        memory |= {f"global.{m}": mean.view(uploads.own[m].shape[1:]) for m, mean in zip(names, means, strict=True)}
        return dict(zip(names, weights[:, None, :].expand(-1, n, -1).unbind(), strict=True)), memory

    def _average(
        self, stacks: Sequence[Tensor], globe: Sequence[Tensor], delta: Tensor, trust: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        """Return the new global model, tensor by tensor, and by what `variant=code` scales them[L]."""
        counts = delta * trust if self.variant == "paper" else trust.expand_as(delta)
        whole = counts.sum(1, keepdim=True)
        shares = counts / torch.where(whole > 0, whole, 1)
        scales = torch.where(whole > 0, (shares * delta).sum(1, keepdim=True), 1).squeeze(1)
        if self.variant == "code":
            shares = shares * delta
        sizes = [len(stack) for stack in stacks]
        parts = (torch.split(tensor, sizes) for tensor in (shares, counts, whole))
        return [mean for each in zip(stacks, globe, *parts, strict=True) for mean in sum_up(*each).unbind()], scales

    def step(
        self, server: Server, uploads: Uploads, mixed: Tensors, receive: Tensor, memory: Tensors
    ) -> tuple[Tensors, Tensors]:
        """With variant=code, undo the normalisation."""
        if self.variant == "code":
            mixed = {n: for_active(receive, memory[f"scale.{n}"] * t, t) for n, t in mixed.items()}
        return mixed, memory


def collect_forms(models: Tensors) -> list[list[str]]:
    """Return the names of the tensors; vectors of one length, many and short, are one form and computed at once."""
    forms: dict[object, list[str]] = {}
    for name, tensor in models.items():
        forms.setdefault((tensor.shape, tensor.dtype) if tensor.dim() == 2 else name, []).append(name)
    return list(forms.values())


def stack_models(models: Tensors, names: Sequence[str]) -> Tensor:
    """Return the clients' tensors of these names as one, [k, N, d]."""
    rows = [models[name].reshape(len(models[name]), -1) for name in names]
    return torch.stack(rows) if len(rows) > 1 else rows[0][None]


def stack_globe(memory: Tensors, names: Sequence[str], stack: Tensor) -> Tensor:
    """Return the global model's tensors[k, d] of these names; 0 if there is nothing to compare with yet."""
    if f"global.{names[0]}" not in memory:
        return torch.zeros_like(stack[:, 0])
    return torch.stack([memory[f"global.{name}"].flatten() for name in names])


def measure(stack: Tensor, globe: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Inner products[k, N] of the clients' tensors[k, N, d] with the global ones[k, d], and the lengths of both."""
    inner = torch.bmm(stack, globe[:, :, None]).squeeze(-1)
    return inner, torch.linalg.vector_norm(stack, dim=-1), torch.linalg.vector_norm(globe, dim=-1, keepdim=True)


def sum_up(stack: Tensor, before: Tensor, shares: Tensor, counts: Tensor, whole: Tensor) -> Tensor:
    """sum_j shares_j theta_j of every tensor of stack[k, N, d]; what was there `before`[k, d] if nothing counts."""
    rows = torch.where((counts > 0)[:, :, None], stack, 0)  # 0 times what is no number is none either
    return torch.where(whole > 0, torch.bmm(shares[:, None, :].to(stack.dtype), rows).squeeze(1), before)


def cosines_to(inner: Tensor, lengths: Tensor, length: Tensor, active: Tensor) -> Tensor:
    """delta[k, N] of the published code: cosines as they are, those with a zero vector 0."""
    known = (lengths > 0) & (length > 0)
    return torch.where(active & known, inner / torch.where(known, lengths, 1) / torch.where(known, length, 1), 0)


def agreement(inner: Tensor, lengths: Tensor, length: Tensor, active: Tensor) -> Tensor:
    """delta[k, N] of all clients: 0 for the absent, 1 for all present where there is nothing to compare."""
    known, present = (lengths > 0) & (length > 0), active.to(inner.dtype)
    cosine = inner / torch.where(known, lengths, 1) / torch.where(known, length, 1)
    delta = torch.where(known, cosine.clamp(0, 1), 1) * present
    return torch.where(delta.sum(1, keepdim=True) > 0, delta, present)
