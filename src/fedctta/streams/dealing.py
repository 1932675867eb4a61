"""Dealing all images that domains have: as many as each has, none dropped in silence.

A domain lasts as many slots as the client with most of its images needs to see them all. Who has fewer fills up its
last batches with images it has seen already; these are shown and adapted to, and count for nothing. What is shown again
and what is not shown at all is said in notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedctta.data.domains import Domains
from fedctta.errors import UserError
from fedctta.keys import Order
from fedctta.sampling import Sampler, in_bursts

ABSENT = -1


class Dealt(NamedTuple):
    """samples[D, N, S, B] of images, counted[D, N, S, B] (False: shown again), and lasts[D], slots per domain."""

    samples: NDArray[np.int64]
    counted: NDArray[np.bool_]
    lasts: NDArray[np.int64]


def deal_domains(
    data: Domains, sampler: Sampler, clients: int, slots: int, batch: int, order: Order, rng: np.random.Generator
) -> Dealt:
    """Deal every domain by itself, for at most `slots` slots; those that hold the same images are dealt alike."""
    labels = [data.labels_of(name) for name in (data.names[:1] if data.shared else data.names)]
    if sampler.by_class or order == "bursts":
        asked, remedy = (f"order={order}", "order=shuffled")
        if sampler.by_class:
            asked, remedy = f"samples={sampler.name}", "samples=disjoint"
        for name in data.names:
            if not data.labelled(name):
                raise UserError(f"{asked} needs labels, and domain {name!r} has none: use {remedy}")
    rows = sampler.deal_domains(labels, len(data.classes), clients, slots * batch, rng)
    if order == "bursts":
        rows = [
            [in_bursts(row[None], truth, rng)[0] if len(row) else row for row in mine]
            for mine, truth in zip(rows, labels, strict=True)
        ]
    lasts = np.array([-(-max(map(len, mine)) // batch) for mine in rows])
    samples = np.zeros((len(rows), clients, lasts.max() * batch), np.int64)
    counted = np.zeros(samples.shape, bool)
    for k, mine in enumerate(rows):
        for i, row in enumerate(mine):
            again = row if len(row) else rng.permutation(len(labels[k]))
            samples[k, i, : lasts[k] * batch] = np.resize(again, lasts[k] * batch)
            counted[k, i, : len(row)] = True
    form = (len(data.names), clients, int(lasts.max()), batch)
    return Dealt(
        np.broadcast_to(samples.reshape(-1, *form[1:]), form),
        np.broadcast_to(counted.reshape(-1, *form[1:]), form),
        np.broadcast_to(lasts, form[:1]),
    )


def slots_of_all(data: Domains, sampler: Sampler, clients: int, batch: int) -> int:
    """Return for how many slots the largest domain lasts if all its images are shown."""
    return max(-(-sampler.largest_share(size, clients) // batch) for size in data.sizes)


def shorten(plan: NDArray[np.int32], visit: NDArray[np.int32], lasts: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the plan without visits for which a domain has no images left.

    A client moves on to its next domain then; in a plan in which clients come and go it is absent instead, so that
    nobody comes earlier than planned.
    """
    over = (plan != ABSENT) & (visit >= lasts[plan])
    if not over.any():
        return plan
    if (plan == ABSENT).any():
        return np.where(over, ABSENT, plan).astype(np.int32)
    columns = [plan[~over[:, i], i] for i in range(plan.shape[1])]
    shorter = np.full((max(map(len, columns)), len(columns)), ABSENT, np.int32)
    for i, column in enumerate(columns):
        shorter[: len(column), i] = column
    return shorter


def describe(
    names: Sequence[str], sizes: Sequence[int], dealt: Dealt, plan: NDArray[np.int32], visit: NDArray[np.int32]
) -> tuple[str, ...]:
    """Say how long the domains that are met last, what of them is not shown, and what a client sees more than once."""
    hidden, filled, repeated, met = [], [], [], {}
    for k, name in enumerate(names):
        slot, client = np.nonzero(plan == k)
        if not len(slot):
            continue
        met[name] = int(dealt.lasts[k])
        samples, counted = dealt.samples[k, client, visit[slot, client]], dealt.counted[k, client, visit[slot, client]]
        unseen = sizes[k] - len(np.unique(samples))
        whose = np.broadcast_to(client[:, None], samples.shape)[counted]
        again = int(counted.sum()) - len(np.unique(whose * sizes[k] + samples[counted]))
        hidden += [f"{unseen:,} of {sizes[k]:,} of {name}"] if unseen else []
        filled += [f"{(~counted).sum():,} of {name}"] if not counted.all() else []
        repeated += [f"{again:,} of {name}"] if again else []
    notes = []
    if len(set(met.values())) > 1:
        notes.append(f"slots for which domains have images: {', '.join(f'{name} {n}' for name, n in met.items())}")
    if hidden:
        notes.append(f"images not shown: {', '.join(hidden)}")
    if filled:
        notes.append(f"images shown again to fill up last batches, counted once: {', '.join(filled)}")
    if repeated:
        notes.append(f"images that a client sees again because their class has too few: {', '.join(repeated)}")
    return tuple(notes)
