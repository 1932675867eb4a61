"""Random numbers as a pure function of a key: the same for a client whatever the lifting, the device or its peers.

A client that needs chance keeps an integer `key` in its private tensors; the engine gives every client its own. Numbers
are hashes of (key, position), so they need no generator whose state vmap would share among clients. `advance` gives the
key of the next batch, `fork` independent keys for several purposes within one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor

Bits = TypeVar("Bits", Tensor, int)

_STEPS = ((16, 0x7FEB352D), (15, 0x2C1B3C6D), (16, 0x297A2D39))
_LOW = 0xFFFFFFFF  # hashes are of 32 bits, in int64, whose products keep their low bits right


def keys(seed: int, count: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the first keys[count] of clients 0, 1, ...: that of a client does not depend on how many there are."""
    return _hash(torch.arange(count, device=device) + _hash(seed))


def advance(key: Tensor) -> Tensor:
    """Return the key of the next batch."""
    return fork(key, 0x5EED)


def fork(key: Tensor, purpose: int) -> Tensor:
    """Return an independent key for one purpose."""
    return _hash(key + _hash(purpose))


def fork_all(key: Tensor, purposes: tuple[int, ...]) -> Tensor:
    """Return the keys[..., P] that `fork` gives for several purposes, at the cost of one."""
    return _hash(key.unsqueeze(-1) + _hash_all(purposes, key.device))


@lru_cache
def _hash_all(purposes: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor([_hash(purpose) for purpose in purposes], device=device)


def numbered(key: Tensor, number: Tensor) -> Tensor:
    """Return an independent key for every number, such as that of a round."""
    return _hash(key + _hash(number))


def name_of(key: Tensor, number: Tensor) -> Tensor:
    """Return a name of 62 bits, above 0, for every number, which no other client gives; 0 for the number 0."""
    low = numbered(key, number)
    return torch.where(number > 0, (numbered(low, number) << 30 | low >> 2) + 1, 0)


def uniform(key: Tensor, shape: Sequence[int], low: float = 0.0, high: float = 1.0) -> Tensor:
    """Return float32 numbers in [low, high), of this shape for every key."""
    count = torch.arange(math.prod(shape), dtype=torch.int32, device=key.device)
    bits = _hash_short(count + key.unsqueeze(-1).to(torch.int32))
    numbers = (bits >> 8 & 0xFFFFFF).float().mul(2.0**-24).reshape((*key.shape, *shape))
    return numbers if (low, high) == (0, 1) else low + (high - low) * numbers


def normal(key: Tensor, shape: Sequence[int]) -> Tensor:
    """Return standard normal numbers (Box and Muller)."""
    radius = (-2 * torch.log1p(-uniform(fork(key, 1), shape))).sqrt()
    return radius * torch.cos(2 * math.pi * uniform(fork(key, 2), shape))


def _hash(x: Bits) -> Bits:
    """Mix 32 bits well: multiply and fold, twice over, after Murmur's finaliser."""
    x = x & _LOW
    for shift, factor in _STEPS:
        x = (x ^ (x >> shift)) * factor & _LOW
    return x ^ (x >> 15)


def _hash_short(x: Tensor) -> Tensor:
    """Compute `_hash` of int32, whose products wrap around by themselves: half the memory, for many numbers."""
    for shift, factor in _STEPS:
        x = (x ^ (x >> shift & _LOW >> shift)) * factor
    return x ^ (x >> 15 & _LOW >> 15)
