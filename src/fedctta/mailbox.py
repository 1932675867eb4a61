"""Late uploads: the server gets each of them some rounds after it was sent.

A mailbox is a dictionary of tensors, so that it is saved with the run. One late upload is called a letter. Letters sent
in round s have names that begin with s: `s.due`[N] are the rounds in which the clients' letters arrive (-1: no letter),
and all other tensors hold their contents. The letters of a round are deleted when the last of them has arrived, so with
delays of up to d rounds the letters of at most d rounds are kept.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedctta.network import Tensors

NOTHING = -1


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


def choose_rows(who: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Return the rows of `yes` where the mask `who`[N] says so, and those of `no` elsewhere."""
    return torch.where(who.view(-1, *[1] * (yes.dim() - 1)), yes, no)
