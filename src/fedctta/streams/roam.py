"""Clients that roam: each walks through the domains in an order of its own, and stays as long as it happens to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedctta.data.domains import CLEAN
from fedctta.errors import UserError
from fedctta.ranges import Count, Share
from fedctta.streams import Schedule

PURPOSE = 41  # keeps this chance apart from all other of the same seed


@dataclass(frozen=True)
class Roam(Schedule):
    """Each client has its own random order of domains; stays are log-uniform between two numbers of images.

    A stay lasts exp(u) images, u uniform from log `shortest` to log `longest`, in whole batches, at least one; then a
    domain is drawn. With `clean`, clean images are one more domain, which is drawn with probability `share`; all other
    domains are equally likely. There are `slots` slots per domain (the clean one not counted), in which a client's
    images are shown in turn, again and again.
    """

    name: ClassVar[str] = "roam"
    repeats: ClassVar[bool] = True
    shortest: Count = 20
    longest: Count = 1000
    clean: bool = False
    share: Share = 0.3
    batch: ClassVar[int] = 10  # of a run, as is the seed: see `set_up`
    seed: ClassVar[int] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shortest > self.longest:
            raise UserError(f"roam.shortest={self.shortest} must be at most roam.longest={self.longest}")

    def set_up(self, batch: int, seed: int) -> Schedule:
        """Stays are counted in images, and drawn anew for every seed."""
        schedule = replace(self)
        object.__setattr__(schedule, "batch", batch)
        object.__setattr__(schedule, "seed", seed)
        return schedule

    def plan(self, clients: int, domains: tuple[str, ...], slots: int) -> NDArray[np.int32]:
        """Draw stays until every client's time is filled."""
        shifted = [k for k, name in enumerate(domains) if not self.clean or name != CLEAN]
        clean = [domains.index(CLEAN)] if self.clean else []
        plan = np.empty((slots * max(1, len(shifted)), clients), np.int32)
        rng = np.random.default_rng((self.seed, PURPOSE))
        for client in range(clients):
            start = 0
            while start < len(plan):
                images = np.exp(rng.uniform(np.log(self.shortest), np.log(self.longest)))
                end = start + max(1, int(images) // self.batch)
                in_clean = bool(clean) and (not shifted or rng.random() < self.share)
                plan[start:end, client] = rng.choice(clean if in_clean else shifted)
                start = end
        return plan
