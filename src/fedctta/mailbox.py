"""Uploads on their way: the server gets each of them some rounds after it was sent.

A mailbox is a dictionary of tensors, so that it is saved with the run: `due`[N] and `sent`[N] are rounds (due -1:
nothing on its way), and every other tensor holds the clients' letters. A client has one letter on its way at most; a
newer one takes the place of the older.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedctta.network import Tensors

NOTHING = -1


class Delivery(NamedTuple):
    """What has arrived: whose letters, how many rounds old, and what was in them (anything for all others)."""

    arrived: Tensor
    age: Tensor
    letters: Tensors


def empty(clients: int, device: torch.device) -> Tensors:
    """Return a mailbox with nothing in it."""
    nothing = torch.full((clients,), NOTHING, dtype=torch.int64, device=device)
    return {"due": nothing, "sent": torch.zeros_like(nothing)}


def send(box: Tensors, letters: Tensors, who: Tensor, due: Tensor, t: int) -> Tensors:
    """Return the mailbox after the clients in the mask `who` sent a letter in round t, to arrive in round `due`."""
    old = {name: box.get(name, torch.zeros_like(new)) for name, new in letters.items()}
    rounds = {"due": torch.where(who, due, box["due"]), "sent": torch.where(who, t, box["sent"])}
    return rounds | {name: choose_rows(who, new, old[name]) for name, new in letters.items()}


def collect(box: Tensors, t: int) -> tuple[Delivery, Tensors]:
    """Return what has arrived by round t, and the mailbox without it."""
    arrived = (box["due"] != NOTHING) & (box["due"] <= t)
    letters = {name: tensor for name, tensor in box.items() if name not in ("due", "sent")}
    return Delivery(arrived, t - box["sent"], letters), {**box, "due": torch.where(arrived, NOTHING, box["due"])}


def choose_rows(who: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Return the rows of `yes` where the mask `who`[N] says so, and those of `no` elsewhere."""
    return torch.where(who.view(-1, *[1] * (yes.dim() - 1)), yes, no)
