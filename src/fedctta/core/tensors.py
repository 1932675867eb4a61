"""Small operations on tensors and on dictionaries of tensors."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedctta.core.lone import is_lone
from fedctta.core.network import Tensors


def named(prefix: str, tensors: Tensors) -> Tensors:
    """Put a prefix before every name."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: Tensors) -> Tensors:
    """Undo `named`: the tensors whose names carry the prefix."""
    return {n.removeprefix(f"{prefix}."): t for n, t in tensors.items() if n.startswith(f"{prefix}.")}


def only(names: Iterable[str], tensors: Tensors) -> Tensors:
    """Return the tensors with these names."""
    return {name: tensors[name] for name in names}


def choose(condition: Tensor, new: Tensors, old: Tensors) -> Tensors:
    """Return `new` where the condition (one truth value per client) holds and `old` elsewhere: a branch for vmap."""
    return {name: torch.where(condition, tensor, old[name]) for name, tensor in new.items()}


def may_hold(condition: Tensor) -> bool:
    """Whether a condition holds, or may hold, for all we can ask: if not, leave out what depends on it."""
    return not is_lone(condition) or bool(condition)


def towards(old: Tensors, new: Tensors, share: float) -> Tensors:
    """Return (1 - share) old + share new, for the names of `old`: an exponential moving average."""
    return {name: torch.lerp(tensor, new[name], share) for name, tensor in old.items()}


def like(old: Tensor, new: Tensor) -> Tensor:
    """Return the values of `new` on the device and in the memory order of `old`."""
    return torch.empty_like(old).copy_(new)


def lay_out(tensors: Tensors) -> Tensor:
    """Return all tensors as one vector, in the order of their names."""
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


def take_apart(vector: Tensor, like: Tensors) -> Tensors:
    """Undo `lay_out`, with the names and shapes of `like`."""
    names = sorted(like)
    parts = torch.split(vector, [like[name].numel() for name in names])
    return {name: part.view(like[name].shape) for name, part in zip(names, parts, strict=True)}


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of values[B] over the true entries of mask[B]; 0 if there is none."""
    return (values * mask).sum() / mask.sum().clamp_min(1)


def choose_rows(who: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Return the rows of `yes` where the mask `who`[N] says so, and those of `no` elsewhere."""
    return torch.where(who.view(-1, *[1] * (yes.dim() - 1)), yes, no)
