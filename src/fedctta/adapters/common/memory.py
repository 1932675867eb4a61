"""RoTTA's memory of images: balanced over predicted classes, fresh and certain.

It has M places. An image in it grows older with every image offered, and its score says how readily it is given up:

    score = 1 / (1 + exp(-age / M)) + H / ln K            H the entropy of its prediction when it came

An image of predicted class c is offered with age 0. If c has M / K images or more, it competes with those; if not, it
takes an empty place, or where there is none competes with those of the largest classes. The one with the highest score
leaves, if that is above the newcomer's; otherwise the newcomer does not come in.

One image's fate depends on the one's before, so images are offered one by one. What changes hands meanwhile are rows of
a small book (class, time of arrival, H / ln K, where the image lies), in double precision; pixels move at the end.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

EMPTY = -1  # the class of an empty place


class Memory(NamedTuple):
    """Places with images[M, ...], their predicted classes (EMPTY for none), ages and entropies."""

    images: Tensor
    label: Tensor
    age: Tensor
    entropy: Tensor


def empty(shape: tuple[int, ...], places: int, device: torch.device | str = "cpu") -> Memory:
    """Return a memory with nothing in it, for images of this shape."""
    age = torch.zeros(places, dtype=torch.int64, device=device)
    return Memory(torch.zeros(places, *shape, device=device), age + EMPTY, age, torch.zeros(places, device=device))


def offered(memory: Memory, images: Tensor, label: Tensor, entropy: Tensor, classes: int, stops: Tensor) -> Memory:
    """Offer images[B, ...] in turn; return the memory as it is after stops[S] of them, stacked [S, M, ...]."""
    places, scale = len(memory.label), math.log(classes)
    where = torch.arange(places + len(images), device=images.device)
    vacant = memory.label == EMPTY
    doubt = torch.where(vacant, torch.inf, memory.entropy.double() / scale)
    book = torch.stack([memory.label.double(), -memory.age.double(), doubt, where[:places].double()])
    time = torch.arange(len(images), device=images.device)
    rows = torch.stack([label.double(), time.double(), entropy.double() / scale, where[places:].double()], 1)
    books = torch.stack(keep_books(book, rows, places / classes))

    label, arrival, doubt, origin = books.index_select(0, stops).unbind(1)
    pool = torch.cat([memory.images, images])
    chosen = pool.index_select(0, origin.long().flatten()).view(*origin.shape, *images.shape[1:])
    vacant = label == EMPTY
    return Memory(
        chosen,
        label.long(),
        torch.where(vacant, 0, stops[:, None] - arrival.long()),
        torch.where(vacant, 0, doubt * scale).to(memory.entropy.dtype),
    )


def keep_books(book: Tensor, rows: Tensor, quota: float) -> list[Tensor]:
    """Return the books before and after every row of rows[B, 4] is offered to the first, book[4, M].

    An empty place is a row of infinite score: first to be taken, as long as the newcomer's class is below its quota.
    """
    places = torch.arange(book.shape[1], device=book.device)
    books = [book]
    for time, row in enumerate(rows.unbind()):
        label, arrival, doubt, _ = book.unbind()
        score = torch.sigmoid((time - arrival) / len(places)) + doubt
        same = label == row[0]
        crowd = (label[:, None] == label).sum(0)  # how many have an image's class; one more outweighs any score
        among = torch.where(same.sum() < quota, score + 4 * crowd, torch.where(same, score, -torch.inf))
        leaves = (places == among.argmax()) & (score > 0.5 + row[2])
        book = torch.where(leaves, row[:, None], book)
        books.append(book)
    return books
