"""Clients that lie to the server, to measure the effect on other clients.

What a liar uploads instead of its tensor theta, and instead of a signal s, with theta_0 the source model:

    sign      2 theta_0 - theta (every change mirrored; variances stop at zero)       -s
    scale     100 theta                                                              100 s
    random    standard normal numbers, new in every round (|.| for variances)        the same

A liar predicts with its true model and receives nothing from the server. It is left out of the comparison, which uses
the accuracy of the honest clients (`accuracy_honest` in the results).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedctta.aggregators import Server, Uploads
from fedctta.core.network import Tensors
from fedctta.core.randomness import fork, keys, normal
from fedctta.core.tensors import choose_rows
from fedctta.errors import UserError
from fedctta.keys import Lie
from fedctta.uploads.stages import Transit

SCALE = 100.0
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

    def mask(self, like: Tensor) -> Tensor:
        """Return the liars as a mask[N]."""
        mask = torch.zeros_like(like)
        mask[list(self.who)] = True
        return mask

    def handle(self, server: Server, transit: Transit) -> Transit:
        """Replace the liars' uploads. They do not receive, so that what counts is the effect on the others."""
        uploads = self.tamper(transit.uploads, server.network.state, transit.t)
        return transit._replace(uploads=uploads, receive=transit.receive & ~self.mask(transit.receive))

    def tamper(self, uploads: Uploads, source: Tensors, t: int) -> Uploads:
        """Return the uploads of round t, the liars' replaced. They count in full, though liars do not receive."""
        who = self.mask(uploads.active)
        key = fork(fork(keys(self.seed, 1, uploads.active.device)[0], PURPOSE), t)
        own = {
            name: choose_rows(who, self._about(tensor, source[name], name, fork(key, k)), tensor)
            for k, (name, tensor) in enumerate(sorted(uploads.own.items()))
        }
        signals = {
            name: choose_rows(who, self._about(tensor, None, name, fork(key, len(own) + k)), tensor)
            for k, (name, tensor) in enumerate(sorted(uploads.signals.items()))
        }
        order = {name: own[name] for name in uploads.own}  # sums over tensors round by their order
        return uploads._replace(own=order, signals=signals, trust=uploads.active.float())

    def _about(self, true: Tensor, source: Tensor | None, name: str, key: Tensor) -> Tensor:
        variance = name.endswith("running_var")
        if self.lie == "scale":
            return (SCALE * true).to(true.dtype)
        if self.lie == "random":
            drawn = normal(key, true.shape).to(true.dtype)
            return drawn.abs() if variance else drawn
        mirrored = -true if source is None else 2 * source - true
        return mirrored.clamp_min(0) if variance else mirrored
