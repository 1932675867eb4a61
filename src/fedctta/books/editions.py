"""Which sums of domains a device has, so that a server sends only what is new.

Sums that have changed enough since the last edition are a new edition, with a number that no other sums have. A device
tells the editions in its book, and is sent the rows of all others. Rows are of the time T of an answer; what a device
keeps fades as it would on the server:

    new row k = the row sent for k                                     if there is one
                the old row of the same edition * 2^(-(T - T old) / half life)    else

Sums have changed enough (`has_news`) if one of their numbers of images has changed by more than `AMOUNT`, or the means
of one group by more than `CLOSE` of their length, against the last edition faded to the same time. So a domain that
many devices live in is sent again after 0.17 half lives, and not for every part.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedctta.books.counting import GROUPS
from fedctta.books.recognition import TINY
from fedctta.books.rows import Layout

AMOUNT, CLOSE = 1 / 8, 1 / 16


class Answer(NamedTuple):
    """What a server sends a device: names and editions[K] of all domains (0: none), and the rows that are new to it.

    `which`[Q] are the domains of rows[Q, S]; place[L] are the domains of those in the device's list (-1: none).
    """

    heading: Tensor
    edition: Tensor
    place: Tensor
    which: Tensor
    rows: Tensor
    time: int


def take_up(book: Tensor, edition: Tensor, faded: float, answer: Answer) -> tuple[Tensor, Tensor]:
    """Return a device's book[K, S] and its editions[K] after an answer; so much is left of the book since it came."""
    same = (answer.edition[:, None] == edition) & (edition != 0)
    kept = torch.where(same.any(1, keepdim=True), faded * book[same.int().argmax(1)], 0)
    return kept.index_copy(0, answer.which, answer.rows), answer.edition


def has_news(layout: Layout, old: NDArray[Any], new: NDArray[Any]) -> bool:
    """Whether sums[S] have changed enough to be sent again."""
    for count, groups in GROUPS.items():
        before, now = old[layout.parts[count].start], new[layout.parts[count].start]
        if abs(now - before) > AMOUNT * before:
            return True
        for group in groups:
            mean = old[layout.parts[group]] / max(before, TINY)
            apart = new[layout.parts[group]] / max(now, TINY) - mean
            if apart @ apart > CLOSE**2 * (mean @ mean):
                return True
    return False
