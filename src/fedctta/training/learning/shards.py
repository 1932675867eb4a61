"""Source clients: shares of labelled source images, each under its own corruption."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedctta.core.network import Network, Tensors
from fedctta.data.corruptions import BENCHMARK, EXTRA, NAMES, corrupt, frost_textures
from fedctta.errors import UserError, unknown
from fedctta.registry import MayBeInfinite, read_names
from fedctta.sampling.skewed import Dirichlet

_GROUPS = {"none": (), "extra": EXTRA, "benchmark": BENCHMARK, "all": NAMES}


OnRound = Callable[[int, int, float], None]
"""Called after every round with the rounds done, the rounds in all, and the mean loss of the last one."""


@dataclass(frozen=True)
class Sharing:
    """How source images become source clients, from which the adapter called `name` learns.

    `corruptions` is none, extra, benchmark, all, or names joined by "+"; clients take them in turn. The default is the
    four that benchmark streams do not show, so that nothing is learnt from a domain that is tested on. `severity=0`
    goes through 1 to 5 in turn. `skew` is the Dirichlet concentration of a client's classes, inf for all alike.
    """

    name: ClassVar[str]
    clients: int = 40
    images: int = 100  # of a client
    corruptions: str = "extra"
    severity: int = 0
    skew: MayBeInfinite = math.inf
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("clients", "images"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be at least 1")
        if self.severity not in range(6):
            raise UserError(f"severity={self.severity} must be 1 to 5, or 0 for all in turn")
        if not self.skew > 0:
            raise UserError(f"skew={self.skew} must be above 0 (inf: all classes alike)")
        if self.seed < 0:
            raise UserError(f"seed={self.seed} must not be negative")
        for name in self.names:
            if name not in NAMES:
                raise unknown("corruption", name, NAMES)

    @property
    def names(self) -> tuple[str, ...]:
        """The corruptions, in the order clients take them."""
        group = _GROUPS.get(self.corruptions)
        return read_names(self.corruptions, "corruptions") if group is None else group

    def learn(self, network: Network, shards: Shards, on_round: OnRound | None = None) -> tuple[Tensors, list[float]]:
        """Return the tensors for the adapter's file, and the mean loss of every round."""
        raise TypeError(f"{type(self).__name__} must define learn")


class Shards(NamedTuple):
    """Images uint8 [S, n, H, W, 3] and labels int64 [S, n] of S source clients, and what each sees them through."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    domains: tuple[str, ...]


def deal(images: NDArray[Any], labels: NDArray[Any], how: Sharing) -> Shards:
    """Deal images [n, H, W, 3] to source clients and corrupt them; the same arguments give the same shards."""
    if len(images) != len(labels) or len(images) == 0:
        raise UserError(f"{len(images)} images and {len(labels)} labels: give as many of each, at least one")
    truth = np.asarray(labels, dtype=np.int64)
    dealt = Dirichlet(how.skew).deal(truth, how.clients, how.images, np.random.default_rng(how.seed))
    frost = frost_textures().images if "frost" in how.names else None
    seen, domains = [], []
    for client, chosen in enumerate(dealt):
        view, domain = np.asarray(images[chosen]), "clean"
        if how.names:
            turn, place = divmod(client, len(how.names))
            name, severity = how.names[place], how.severity or 1 + turn % 5
            textures = frost if name == "frost" else None
            view = corrupt(view, name, severity, how.seed + client, textures=textures)
            domain = f"{name}-{severity}"
        seen.append(view)
        domains.append(domain)
    return Shards(np.stack(seen), truth[dealt], tuple(domains))
