"""Clients that come, stay a while, and leave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedctta.errors import UserError
from fedctta.ranges import Count, Share
from fedctta.streams import ABSENT, Schedule


@dataclass(frozen=True)
class Arrivals(Schedule):
    """Clients arrive one after another, each in its own domain (every < stay: their stays overlap).

    Client k comes in slot k `every` and stays `stay` slots (by default all its `slots`), then is gone; by default the
    next one comes when it leaves. With `visits` > 1 the whole procession repeats, each client in the next domain.
    """

    name: ClassVar[str] = "arrivals"
    stay: Count | None = None
    every: Count | None = None
    visits: Count = 1

    def default_clients(self) -> int:
        """Ten, as in BPFedCTTA."""
        return 10

    def plan(self, clients: int, domains: tuple[str, ...], slots: int) -> NDArray[np.int32]:
        """Lay out the stays."""
        stay = slots if self.stay is None else self.stay
        every = stay if self.every is None else self.every
        if self.visits > 1 and clients * every < stay:
            raise UserError(f"{self.name}.every={every} brings a client back before it has left: use more clients")
        last = (self.visits * clients - 1) * every
        plan = np.full((last + stay, clients), ABSENT, np.int32)
        spread = np.arange(clients) * len(domains) // clients
        home = spread if clients <= len(domains) else np.arange(clients)
        for k in range(self.visits * clients):
            client, visit = k % clients, k // clients
            plan[k * every : k * every + stay, client] = (home[client] + visit) % len(domains)
        return plan


@dataclass(frozen=True)
class Churn(Schedule):
    """Clients join, leave and return at random; while away, their time in a domain stands still.

    In every slot an absent client joins with probability `join` and a present one leaves with probability `leave`, so
    that on average join / (join + leave) of all are there. Client k begins in the k-th domain and moves on to the
    next one after `slots` slots of presence. There are as many slots as the whole walk takes without absences.
    The run's seed does not change who is there when; only `churn.seed` does.
    """

    name: ClassVar[str] = "churn"
    join: Share = 0.1
    leave: Share = 0.1
    seed: int = 0

    def default_clients(self) -> int:
        """Ten."""
        return 10

    def plan(self, clients: int, domains: tuple[str, ...], slots: int) -> NDArray[np.int32]:
        """Draw who is there when."""
        rng = np.random.default_rng((self.seed, 29))
        there = np.zeros((len(domains) * slots, clients), bool)
        now = rng.random(clients) < self.join / max(self.join + self.leave, 1e-12)
        for t in range(len(there)):
            change = rng.random(clients) < np.where(now, self.leave, self.join)
            there[t] = now = now ^ change
        met = (there.cumsum(0) - 1) // slots
        return np.where(there, (met + np.arange(clients)) % len(domains), ABSENT).astype(np.int32)
