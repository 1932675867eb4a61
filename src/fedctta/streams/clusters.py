"""The papers' streams: clusters of clients walk through the domains in rotated orders.

N clients form c clusters of consecutive clients; cluster g meets domain (k + g s) mod D at its k-th shift. SH = c /
N. With c = 4 and D = 15 the step s is 4: the papers' NIID stream. A domain lasts `slots_per_shift` slots and the walk
is repeated until every domain has had its slots, so that TH = 1 / slots_per_shift.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedctta.errors import UserError
from fedctta.ranges import Count
from fedctta.streams import Schedule

CLUSTERS = 4  # of the papers


@dataclass(frozen=True)
class NIID(Schedule):
    """Clusters of clients in different domains at any time (4 clusters: SH = 0.2 with 20 clients).

    In runs with fewer clients or domains than the default number of clusters, there are as many clusters.
    """

    name: ClassVar[str] = "niid"
    clusters: Count = CLUSTERS
    slots_per_shift: Count | None = None

    def fit(self, clients: int, domains: int) -> NIID:
        """Return fewer clusters than the default where there are fewer clients or domains."""
        return replace(self, clusters=min(CLUSTERS, clients, domains)) if self.clusters == CLUSTERS else self

    def plan(self, clients: int, domains: tuple[str, ...], slots: int) -> NDArray[np.int32]:
        """Rotate the order of domains from cluster to cluster."""
        if self.clusters > min(clients, len(domains)):
            raise UserError(
                f"{self.name}.clusters={self.clusters} must be between 1 and {min(clients, len(domains))}"
                f" (there are {clients} clients and {len(domains)} domains): give"
                " a number that fits, or drop the key"
            )
        cluster = np.arange(clients) * self.clusters // clients
        walk = shifts(len(domains), slots, self.slots_per_shift, f"{self.name}.slots_per_shift")
        start = cluster * rotation(self.clusters, len(domains))
        return ((walk[:, None] + start[None, :]) % len(domains)).astype(np.int32)


@dataclass(frozen=True)
class IID(Schedule):
    """All clients in the same domain at any time (SH = 1/N)."""

    name: ClassVar[str] = "iid"
    slots_per_shift: Count | None = None

    def plan(self, clients: int, domains: tuple[str, ...], slots: int) -> NDArray[np.int32]:
        """One cluster."""
        walk = shifts(len(domains), slots, self.slots_per_shift, f"{self.name}.slots_per_shift")
        return np.repeat(walk[:, None], clients, axis=1).astype(np.int32)


def rotation(clusters: int, domains: int) -> int:
    """Step between the starting domains of neighbouring clusters: evenly spread, never two alike."""
    step = max(1, round(domains / clusters))
    distinct = len({g * step % domains for g in range(clusters)}) == clusters
    return step if distinct else domains // clusters


def shifts(domains: int, slots: int, slots_per_shift: int | None, key: str) -> NDArray[np.int64]:
    """Return the walk 0..D-1, each domain for `slots_per_shift` (or all its) slots, repeated until each had `slots`."""
    if slots_per_shift is None:
        slots_per_shift = slots
    if slots % slots_per_shift:
        raise UserError(f"{key}={slots_per_shift} must divide slots={slots}")
    once = np.repeat(np.arange(domains), slots_per_shift)
    return np.tile(once, slots // slots_per_shift)
