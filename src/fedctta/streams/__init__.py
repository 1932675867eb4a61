"""Who sees which domain and which images, when. One schedule a file.

A schedule says which domain every client meets in every slot; `build` adds which images, and gives a `Stream` that is
read one slot at a time. Labels and domains leave a stream for the metrics only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedctta.data.corrupted import Domains
from fedctta.errors import UserError
from fedctta.registry import Registry
from fedctta.sampling import Sampler, in_bursts
from fedctta.sampling.plain import Disjoint

ABSENT = -1
Order = Literal["shuffled", "bursts"]


class Slot(NamedTuple):
    """One time step: images[A, B, H, W, 3] (uint8) and labels[A, B] of the A active clients, domain[N] (-1: absent)."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    domain: NDArray[np.int32]


class Schedule:
    """Which domain every client meets in every slot."""

    name: ClassVar[str]

    def default_clients(self) -> int:
        """Return how many clients there are unless the user says otherwise."""
        return 20

    def plan(self, clients: int, domains: tuple[str, ...], slots: int) -> NDArray[np.int32]:
        """Return domain[T, N] (indices into `domains`, -1: absent); every domain lasts `slots` slots a client."""
        raise TypeError(f"{type(self).__name__} must define plan")


@dataclass(frozen=True)
class Stream:
    """A schedule with its images: `domain[T, N]` and `samples[N, S, B]`, the k-th batch of a client in any domain."""

    data: Domains
    domain: NDArray[np.int32]
    samples: NDArray[np.int64]
    visit: NDArray[np.int32]  # [T, N]: how often the client has met this domain before

    def __len__(self) -> int:
        return len(self.domain)

    @property
    def clients(self) -> int:
        """Number of clients N."""
        return int(self.domain.shape[1])

    @property
    def shape(self) -> tuple[int, ...]:
        """Height, width and channels of an image."""
        return next(iter(self.data.images.values())).shape[1:]

    def slot(self, t: int) -> Slot:
        """Read one slot."""
        active = np.flatnonzero(self.domain[t] != ABSENT)
        samples = self.samples[active, self.visit[t, active]]
        images = np.empty((*samples.shape, *self.shape), np.uint8)
        for k in np.unique(self.domain[t, active]):
            here = self.domain[t, active] == k
            images[here] = self.data.images[self.data.names[k]][samples[here]]
        return Slot(images, self.data.labels[samples], self.domain[t])

    def class_counts(self) -> NDArray[np.int32]:
        """Return how many images of every class every client sees in every domain, [D, N, K]; for metrics only."""
        counts = np.zeros((len(self.data.names), self.clients, len(self.data.classes)), np.int32)
        slot, client = np.nonzero(self.domain != ABSENT)
        labels = self.data.labels[self.samples[client, self.visit[slot, client]]]
        np.add.at(counts, (self.domain[slot, client][:, None], client[:, None], labels), 1)
        return counts

    @property
    def spatial_heterogeneity(self) -> float:
        """SH: distinct domains among the clients present, over their number; mean over slots (FedCTTA Eq. 8)."""
        present = [row[row != ABSENT] for row in self.domain]
        return float(np.mean([len(np.unique(row)) / len(row) for row in present if len(row)]))

    @property
    def temporal_heterogeneity(self) -> float:
        """TH: one over the number of consecutive slots with the same domain; 1 when every slot differs."""
        changes = (self.domain[1:] != self.domain[:-1]).sum(0) + 1
        return float(np.mean(changes / len(self.domain)))


def build(
    schedule: Schedule,
    data: Domains,
    clients: int,
    slots: int,
    batch: int,
    seed: int,
    sampler: Sampler | None = None,
    order: Order = "shuffled",
) -> Stream:
    """Lay out a schedule over a data set.

    The sampler (by default `disjoint`) deals images to clients; a client sees the same images in the same order in
    every domain, as in the papers. With `order="bursts"` its classes arrive one after another.
    """
    for key, value in (("clients", clients), ("slots", slots), ("batch", batch)):
        if value < 1:
            raise UserError(f"{key}={value} must be at least 1")
    domain = schedule.plan(clients, data.names, slots).astype(np.int32)
    if not (domain != ABSENT).any():
        raise UserError(f"stream {schedule.name} shows no client any domain: give at least one client one visit")
    visit = _visits(domain, len(data.names))
    rng = np.random.default_rng((seed, 17))
    need = int(visit.max() + 1) * batch
    chosen = (sampler or Disjoint()).deal(data.labels, clients, need, rng)
    if order == "bursts":
        chosen = in_bursts(chosen, data.labels, rng)
    return Stream(data, domain, chosen.reshape(clients, -1, batch).astype(np.int64), visit)


def _visits(domain: NDArray[np.int32], domains: int) -> NDArray[np.int32]:
    """visit[t, i]: number of earlier slots in which client i met the domain of slot t."""
    visit = np.zeros_like(domain)
    for k in range(domains):
        here = domain == k
        visit[here] = (here.cumsum(0, dtype=np.int32) - 1)[here]
    return visit


schedules: Registry[Schedule] = Registry("stream", __name__)
