"""The uniform numbers by which FedTSA's masks are drawn, for many epochs at once.

A number depends on the round's key and on its epoch, not on what else is drawn with it.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from fedctta.aggregators.fedtsa.attention import Pairs
from fedctta.aggregators.fedtsa.training import DrawNoise, Training
from fedctta.core.randomness import uniform

MANY = 2**26  # numbers that are drawn at once, of as many epochs as that makes


def prepare_noise(key: Tensor, clients: int, slots: int, how: Training) -> DrawNoise | None:
    """Return the noise of one round's masks, or with key[R] of R rounds, an axis in front; None if there are no masks.

    It is drawn where the key is, for many epochs at once as long as they are small.
    """
    if not how.lam:
        return None
    epochs = choose_epochs_at_once(key.numel() * count_numbers(clients, slots, how), how)

    @lru_cache(maxsize=1)
    def part(first: int) -> Pairs:
        def draw(one: Tensor) -> tuple[Tensor, Tensor]:
            return draw_noise(one, clients, slots, how, first, min(epochs, how.epochs - first))

        return Pairs(*(torch.func.vmap(draw) if key.ndim else draw)(key))

    def noise(epoch: int) -> Pairs:
        place = epoch % epochs
        return Pairs(*(drawn.select(key.ndim, place) for drawn in part(epoch - place)))

    return noise


def choose_epochs_at_once(each: int, how: Training) -> int:
    """Return for how many epochs noise is drawn at once, given the numbers per epoch."""
    return min(how.epochs, max(1, MANY // each))


def count_numbers(clients: int, slots: int, how: Training) -> int:
    """How many numbers an epoch's masks are drawn by."""
    return sum(map(math.prod, list_shapes(clients, slots, how)))


def draw_noise(key: Tensor, clients: int, slots: int, how: Training, first: int | Tensor, epochs: int) -> Pairs:
    """Return the noise of some epochs, an axis in front. A number depends on its epoch, not on what else is drawn."""
    begin, parts = 0, []
    for shape in list_shapes(clients, slots, how):
        size = math.prod(shape)
        parts.append(uniform(key + (begin + first * size), (epochs, *shape)))
        begin += how.epochs * size
    return Pairs(*parts)


def list_shapes(clients: int, slots: int, how: Training) -> tuple[torch.Size, torch.Size]:
    """Return the shapes of an epoch's noise over time and over clients."""
    return torch.Size((clients, slots, slots)), torch.Size((2 if how.code else slots, clients, clients))
