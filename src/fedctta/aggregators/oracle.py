"""The yardstick: average exactly the clients that meet the same domain now.

W_ij = 1 / n_i if client j is in client i's domain, 0 otherwise, with n_i the number of clients there. A late upload is
of the domain it was sent in. It is told what no server can know, so it is an upper bound for averaging within one round
and not a method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedctta.aggregators import Aggregator, Server, Uploads
from fedctta.core.network import Tensors


@dataclass(frozen=True)
class Oracle(Aggregator):
    """Average exactly the clients that share a domain (upper bound; is told the domains)."""

    name: ClassVar[str] = "oracle"
    title: ClassVar[str] = "Oracle (upper bound)"
    colour: ClassVar[str] = "#8a8f98"
    upper_bound: ClassVar[bool] = True

    @property
    def only_mixes(self) -> bool:
        """W comes of domains."""
        return True

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Tensor, Tensors]:
        """W_ij = [same domain] / number of clients in it."""
        domain = uploads.domain
        assert domain is not None, "the engine tells an upper bound the domains"
        same = (domain[:, None] == domain[None, :]).float()
        return same / same.sum(1, keepdim=True), memory
