"""Small operations on tensors and on dictionaries of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fedctta.core.column_blocks import close_gaps
from fedctta.core.lone import is_lone
from fedctta.core.moments import SHORT
from fedctta.core.network import Tensors

PIECES, SHORTEST = 32, 4096


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
    return each_element(lambda a, b: (torch.lerp(a, b, share),), old, new)[0]


def like(old: Tensor, new: Tensor) -> Tensor:
    """Return the values of `new` on the device and in the memory order of `old`."""
    return torch.empty_like(old).copy_(new)


def write_all(into: list[Tensor], values: list[Tensor]) -> None:
    """Copy tensors over others, on a GPU all by one kernel or a few."""
    if into[0].is_cuda:
        into, values = cut(into, close_gaps(values))
    torch._foreach_copy_(into, values)


def cut(into: list[Tensor], values: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Cut pairs of tensors into pieces, at most `PIECES` more than there were.

    A kernel for many tensors gives 65,536 numbers to one block, and would wait for that one.
    """
    length = max(SHORTEST, sum(tensor.numel() for tensor in into) // PIECES + 1)
    pieces: list[tuple[Tensor, Tensor]] = []
    for there, value in zip(into, values, strict=True):
        if there.numel() > length and there.is_contiguous() and value.is_contiguous():
            pieces += zip(torch.split(there.view(-1), length), torch.split(value.view(-1), length), strict=True)
        else:
            pieces.append((there, value))
    return [there for there, _ in pieces], [value for _, value in pieces]


def lay_out(tensors: Tensors) -> Tensor:
    """Return all tensors as one vector, in the order of their names."""
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


def take_apart(vector: Tensor, like: Tensors) -> Tensors:
    """Undo `lay_out`, with the names and shapes of `like`."""
    names = sorted(like)
    parts = torch.split(vector, [like[name].numel() for name in names])
    return {name: part.view(like[name].shape) for name, part in zip(names, parts, strict=True)}


def each_element(function: Callable[..., tuple[Tensor, ...]], *parts: Tensors) -> list[Tensors]:
    """Apply an elementwise function of one tensor of every part, for the names of the first; return results by name.

    Vectors are laid side by side and pass through it once: a model has many short ones, and a GPU takes longer to
    begin a kernel than to compute a vector. The results have the same bits.
    """
    vectors = [name for name, tensor in parts[0].items() if tensor.dim() == 1]
    sizes = [parts[0][name].numel() for name in vectors]
    results: dict[str, tuple[Tensor, ...]] = {}
    if vectors:
        together = function(*(torch.cat([part[name] for name in vectors]) for part in parts))
        results |= zip(vectors, zip(*(torch.split(whole, sizes) for whole in together), strict=True), strict=True)
    results |= {name: function(*(part[name] for part in parts)) for name in parts[0] if name not in results}
    by_result = zip(*(results[name] for name in parts[0]), strict=True)
    return [dict(zip(parts[0], tensors, strict=True)) for tensors in by_result]


def read_bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor of any type, in the order of its elements: what hashes of models are made of."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


def add_up(tensor: Tensor) -> Tensor:
    """Return the sum of all elements; that of 16 bits, whose largest number is soon exceeded, in float32."""
    return tensor.sum(dtype=torch.float32 if tensor.dtype in SHORT else None)


def mirror(x: Tensor) -> Tensor:
    """Return the mirrored images; data of other kinds as they are."""
    return x.flip(-1) if x.dim() == 4 else x


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of values[B] over the true entries of mask[B]; 0 if there is none."""
    return (values * mask).sum() / mask.sum().clamp_min(1)


def constant(values: Any, like: Tensor) -> Tensor:
    """Return numbers (nested tuples) as a tensor of the type and on the device of `like`, uploaded once.

    A captured round must not copy from the host.
    """
    return _constant(values, like.dtype, like.device)


@lru_cache(maxsize=64)
def _constant(values: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


def agree(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors agree up to rounding; in bfloat16, which is rounded by chance, up to two steps."""
    relative = 2.0**-6 if one.dtype == torch.bfloat16 else 1e-3
    return torch.allclose(one.float(), other.float(), rtol=relative, atol=1e-3, equal_nan=True)


def choose_rows(who: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Return the rows of `yes` where the mask `who`[N] says so, and those of `no` elsewhere."""
    return torch.where(who.view(-1, *[1] * (yes.dim() - 1)), yes, no)
