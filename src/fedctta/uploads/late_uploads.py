"""Late uploads: the server gets each of them some rounds after it was sent.

A mailbox is a dictionary of tensors, so that it is saved with the run. One late upload is called a letter. Letters sent
in round s have names that begin with s: `s.due`[N] are the rounds in which the clients' letters arrive (-1: no letter),
and all other tensors hold their contents. The letters of a round are deleted when the last of them has arrived, so with
delays of up to d rounds the letters of at most d rounds are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedctta.aggregators import Server, Uploads
from fedctta.core.network import Tensors
from fedctta.core.tensors import choose_rows, named
from fedctta.uploads.stages import Transit

NOTHING = -1


@dataclass(frozen=True)
class Late:
    """The weight of an upload that arrives `age` rounds late: decay^age, or 0."""

    stale: Literal["discount", "refuse"] = "discount"
    decay: float = 0.5
    newest: bool = False  # uploads contain all earlier ones of their client (`Aggregator.cumulative`)

    def trust(self, age: int) -> float:
        """Return the weight of an upload of this age; an upload of this round has weight 1."""
        return 0.0 if age and self.stale == "refuse" else self.decay**age

    def handle(self, server: Server, transit: Transit) -> Transit:
        """Put late uploads into the mailbox, and give the server those that have arrived.

        A client whose upload is late keeps its model and takes no part in this round. If several uploads of client i
        have arrived, of ages a_1 < a_2 < ..., the server uses their weighted mean, with the weight of the newest:

            theta_i = sum_k tau_k theta_ik / sum_k tau_k,    tau_k = decay^a_k,    trust_i = tau_1

        Signals are averaged in the same way. Where an upload contains all earlier ones, the newest alone is used.
        An upper bound knows the domain of each upload, and leaves out uploads
        from another domain than the newest one's.
        """
        if transit.delay is None:
            return transit
        uploads, t, punctual = transit.uploads, transit.t, transit.delay == 0
        fresh = named("own", uploads.own) | named("signal", uploads.signals)
        if uploads.domain is not None:
            fresh["domain"] = uploads.domain
        deliveries, post = collect(transit.post, t)
        if self.trust(1):
            post = send(post, fresh, transit.active & ~punctual, t + transit.delay, t)
        held, trust = fresh, (transit.active & punctual).float()
        total = trust
        for arrived, age, letters in deliveries:
            if uploads.domain is not None:
                arrived = arrived & ((total == 0) | (letters["domain"] == held["domain"]))
            arrived = arrived & (total == 0) if self.newest else arrived
            weight = self.trust(age) * arrived
            total = total + weight
            held = blend(held, letters, weight / torch.where(total > 0, total, 1))
            trust = torch.maximum(trust, weight)
        own = {name: held[f"own.{name}"] for name in uploads.own}
        signals = {name: held[f"signal.{name}"] for name in uploads.signals}
        uploads = Uploads(own, signals, trust > 0, held.get("domain"), trust)
        return transit._replace(uploads=uploads, receive=transit.receive & punctual, post=post)


class Delivery(NamedTuple):
    """Letters of one round that have arrived: whose, how many rounds old, and contents (rows of others: undefined)."""

    arrived: Tensor
    age: int
    letters: Tensors


def send(box: Tensors, letters: Tensors, who: Tensor, due: Tensor, t: int) -> Tensors:
    """Return the mailbox after the clients in the mask `who` sent a letter in round t, to arrive in round `due`."""
    if not who.any():
        return box
    return box | {f"{t}.due": torch.where(who, due, NOTHING)} | {f"{t}.{name}": new for name, new in letters.items()}


def collect(box: Tensors, t: int) -> tuple[list[Delivery], Tensors]:
    """Return what has arrived by round t, the newest first, and the mailbox without it."""
    deliveries, left = [], dict(box)
    for sent in sorted((int(name.removesuffix(".due")) for name in box if name.endswith(".due")), reverse=True):
        due = box[f"{sent}.due"]
        arrived = (due != NOTHING) & (due <= t)
        if arrived.any():
            names = [name for name in box if name.startswith(f"{sent}.") and name != f"{sent}.due"]
            letters = {name.removeprefix(f"{sent}."): box[name] for name in names}
            deliveries.append(Delivery(arrived, t - sent, letters))
            left[f"{sent}.due"] = torch.where(arrived, NOTHING, due)
            if (left[f"{sent}.due"] == NOTHING).all():
                left = {name: tensor for name, tensor in left.items() if not name.startswith(f"{sent}.")}
    return deliveries, left


def blend(rows: Tensors, letters: Tensors, share: Tensor) -> Tensors:
    """Return (1 - share_i) rows_i + share_i letters_i; where share[N] is 0 or 1, one of them unchanged.

    Tensors of whole numbers have no mean; they are taken from letters only where share is 1.
    """

    def one(row: Tensor, letter: Tensor) -> Tensor:
        if row.is_floating_point():
            part = share.to(row.dtype).view(-1, *[1] * (row.dim() - 1)).expand_as(row)
            row = choose_rows(share > 0, torch.lerp(row, letter, part), row)  # 0 times nan would be nan
        return choose_rows(share == 1, letter, row)

    return {name: one(row, letters[name]) for name, row in rows.items()}
