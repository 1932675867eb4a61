"""Clients that lie to the server, to measure the effect on other clients.

What a liar uploads instead of its tensor theta, and instead of a signal s, with theta_0 the source model:

    sign          2 theta_0 - theta (every change mirrored; variances stop at zero)       -s
    scale         100 theta                                                              100 s
    random        standard normal numbers, new in every round (|.| for variances)        the same
    statistics    means of BatchNorm layers + 5 source deviations; the rest is true      s

Signals of whole numbers, which name things and count, stay true. Of a book of domains, moments are lied about and looks
are true (`books.lies`): whoever lies about its looks is alone in a domain that nobody else is in.

A liar predicts with its true model and receives nothing from the server. What it predicts counts for nothing: accuracy
and its like are those of the honest clients (`runs.build: choose_stream`). From round `until` on it tells the truth,
and receives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedctta.aggregators import Server, Uploads
from fedctta.books.lies import SCALE, SHIFT, tell_lie
from fedctta.core.network import Tensors
from fedctta.core.randomness import fork, keys, normal
from fedctta.core.tensors import choose_rows
from fedctta.errors import UserError
from fedctta.keys import Lie
from fedctta.uploads.stages import Transit

PARTS = "part"  # the signal that holds what a device knows of its domains
SMALLEST = 1e-5  # added to the source's variance, as layers do
PURPOSE = 0x11A5  # keeps this chance apart from all other of the same seed


def choose_liars(clients: int, count: int, seed: int) -> tuple[int, ...]:
    """Return who lies: `count` of the clients, drawn from the seed."""
    if count >= clients:
        raise UserError(f"liars={count} leaves nobody honest of {clients} clients: use fewer liars")
    order = np.random.default_rng([seed, PURPOSE]).permutation(clients)
    return tuple(sorted(int(i) for i in order[:count]))


@dataclass(frozen=True)
class Liars:
    """Who lies, and how."""

    who: tuple[int, ...]
    lie: Lie = "sign"
    seed: int = 0
    until: int | None = None  # the first round in which all tell the truth

    def mask(self, like: Tensor) -> Tensor:
        """Return the liars as a mask[N]."""
        mask = torch.zeros_like(like)
        mask[list(self.who)] = True
        return mask

    def handle(self, server: Server, transit: Transit) -> Transit:
        """Replace the liars' uploads. They do not receive, so that what counts is the effect on the others."""
        if self.until is not None and transit.t >= self.until:
            return transit
        uploads = self.tamper(transit.uploads, server.network.state, transit.t)
        return transit._replace(uploads=uploads, receive=transit.receive & ~self.mask(transit.receive))

    def tamper(self, uploads: Uploads, source: Tensors, t: int) -> Uploads:
        """Return the uploads of round t, the liars' replaced. They count in full, though liars do not receive."""
        who = self.mask(uploads.active)
        key = fork(fork(keys(self.seed, 1, uploads.active.device)[0], PURPOSE), t)
        own = {
            name: choose_rows(who, self._about(tensor, source, name, fork(key, k)), tensor)
            for k, (name, tensor) in enumerate(sorted(uploads.own.items()))
        }
        channels = sum(len(tensor) for name, tensor in source.items() if name.endswith("running_mean"))
        book = channels if PARTS in uploads.signals else None
        signals = {
            name: choose_rows(who, self._say(tensor, name, book, fork(key, len(own) + k)), tensor)
            for k, (name, tensor) in enumerate(sorted(uploads.signals.items()))
        }
        order = {name: own[name] for name in uploads.own}  # sums over tensors round by their order
        return uploads._replace(own=order, signals=signals, trust=uploads.active.float())

    def _about(self, true: Tensor, source: Tensors, name: str, key: Tensor) -> Tensor:
        """Return what is said of a tensor of the model."""
        if self.lie == "statistics":
            if not name.endswith("running_mean"):
                return true
            return true + SHIFT * (source[name.removesuffix("mean") + "var"] + SMALLEST).sqrt()
        if self.lie == "sign":
            mirrored = 2 * source[name] - true
            return mirrored.clamp_min(0) if name.endswith("running_var") else mirrored
        return self._spoil(true, name, key)

    def _say(self, true: Tensor, name: str, book: int | None, key: Tensor) -> Tensor:
        """Return what is said instead of a signal; `book`: that is a book, of a model with so many channels."""
        if book is not None:
            return tell_lie(self.lie, true, key, book) if name == PARTS else true
        if self.lie == "statistics" or not true.is_floating_point():
            return true
        return -true if self.lie == "sign" else self._spoil(true, name, key)

    def _spoil(self, true: Tensor, name: str, key: Tensor) -> Tensor:
        if self.lie == "scale":
            return SCALE * true
        drawn = normal(key, true.shape).to(true.dtype)
        return drawn.abs() if name.endswith("running_var") else drawn


def has_effect(lie: Lie, own: Tensors, signals: Tensors) -> bool:
    """Whether a lie changes uploads with these tensors and signals."""
    if lie == "statistics":
        return PARTS in signals or any(name.endswith("running_mean") for name in own)
    return bool(own) or any(signal.is_floating_point() for signal in signals.values())
