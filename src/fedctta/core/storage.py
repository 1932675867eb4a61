"""Kernels and matrices of clients stored in bfloat16, half the bytes of float32: for more clients than memory holds.

A client is widened to float32 when it passes through the model, and narrowed when it is put back. bfloat16 has 8 bits,
so that to the nearest a step of 1e-5 would be lost for most weights. Therefore numbers are rounded up or down by
chance, with the probabilities that keep their mean:

    P(up) = (x - down) / (up - down)        for down <= x <= up, neighbours in bfloat16

and many small steps add up as they should. A number of bfloat16 stays what it is. Chance is a hash of a key of the
client, which is another one after every step, and of the number's position: the same for every lifting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedctta.core.clients import Client, InChunks, Lifter
from fedctta.core.network import Network, Tensors
from fedctta.core.randomness import advance, fork, keys

KEY = "rounding"  # the name of a client's key, among what it keeps privately
PURPOSE, SERVER = 0xB16, 0x5E7  # for which keys are forked
DROPPED = 16  # bits that bfloat16 has less than float32


@dataclass(frozen=True)
class Storage:
    """Which of the clients' own tensors are stored in bfloat16, by name."""

    names: frozenset[str]

    def begin(self, client: Client) -> Client:
        """Return a client before its first batch as it is stored, rounded to the nearest."""
        own = {name: t.to(torch.bfloat16) if name in self.names else t for name, t in client.own.items()}
        return client._replace(own=own)

    def narrow(self, tensors: Tensors, key: Tensor, *, stacked: bool = False) -> Tensors:
        """Return one client's tensors as they are stored, or stacked ones: by one key[] for all clients, or key[N]."""
        return {
            name: narrow(t, self.draw(name, key, t.shape[stacked:]))
            if name in self.names and t.dtype == torch.float32
            else t
            for name, t in tensors.items()
        }

    def draw(self, name: str, key: Tensor, shape: torch.Size) -> Tensor:
        """Draw the chance by which a tensor of this name and shape is rounded, for every key."""
        return draw(fork(key, sorted(self.names).index(name)), shape)

    def lift(self, lift: Lifter) -> Lifter:
        """Return the lifting for functions of clients that are stored so: what passes through at a time is wide."""
        return replace(lift, each=Stored(self, lift.each)) if isinstance(lift, InChunks) else Stored(self, lift)


@dataclass(frozen=True)
class Stored:
    """A lifting of functions whose clients are stored in bfloat16; the functions see float32, and no key."""

    storage: Storage
    lifter: Lifter

    @property
    def __name__(self) -> str:
        """How clients are lifted, in words."""
        return self.lifter.__name__

    def __call__(self, function: Any) -> Any:
        """Lift a function of one client."""
        return partial(self._call, self.lifter(function))

    def _call(self, lifted: Any, *arguments: Any) -> Any:
        """Widen and narrow stacks, outside of what is lifted: bits cannot be looked at in every torch's vmap."""
        key = next((a.private[KEY] for a in arguments if isinstance(a, Client) and KEY in a.private), None)
        result = lifted(*(_open(a) if isinstance(a, Client) else a for a in arguments))
        return result if key is None else self._put_back(result, key)

    def _put_back(self, result: Any, key: Tensor) -> Any:
        if isinstance(result, Client):
            own = self.storage.narrow(result.own, key, stacked=True)
            return Client(own, {**result.private, KEY: advance(key)})
        return tuple(self._put_back(part, key) for part in result) if type(result) is tuple else result


def choose_storage(network: Network, client: Client) -> Storage | None:
    """Return the storage of clients like this one: bfloat16 for weights of two axes or more; None if it has none."""
    weights = client.own.keys() & network.parameters.keys()
    names = frozenset(name for name in weights if client.own[name].dim() > 1)
    return Storage(names) if names else None


def first_keys(seed: int, count: int, device: torch.device) -> Tensor:
    """Return the keys[count] with which clients begin to round."""
    return fork(keys(seed, count, device), PURPOSE)


def server_key(private: Tensors) -> Tensor:
    """Return the key with which the server rounds, given what all clients keep: another one after every batch."""
    return fork(private[KEY].sum(), SERVER)


def widen(tensors: Tensors) -> Tensors:
    """Return the tensors with float32 in place of bfloat16."""
    return {name: t.float() if t.dtype == torch.bfloat16 else t for name, t in tensors.items()}


def narrow(tensor: Tensor, chance: Tensor) -> Tensor:
    """Round float32 to bfloat16, up or down as whole numbers `chance` from 0 to 2^16 - 1 say; they may be broadcast."""
    bits = tensor.view(torch.int32) + chance
    rounded = bits.bitwise_and_(-(2**DROPPED)).view(torch.float32).to(torch.bfloat16)
    return rounded.masked_fill_(tensor.isnan(), torch.nan)  # to whose bits, on a GPU all ones, nothing can be added


def draw(key: Tensor, shape: torch.Size) -> Tensor:
    """Draw whole numbers[..., shape] from 0 to 2^16 - 1 for every key[...].

    The same numbers for all keys, each combined with one of the key by an exclusive or: among the clients of a chunk
    they are hashed once. Every number is uniform, and any two are independent.
    """
    last = 2**DROPPED - 1
    common: Tensor = (keys(0, math.prod(shape), key.device) & last).to(torch.int32).view(shape)
    return common.bitwise_xor((key & last).to(torch.int32).view(*key.shape, *[1] * len(shape)))


def _open(client: Client) -> Client:
    return Client(widen(client.own), {name: t for name, t in client.private.items() if name != KEY})
