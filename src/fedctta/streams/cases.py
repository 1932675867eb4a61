"""The two case studies with ten clients: clients 1-4, 5-7 and 8-10 walk together.

Group 1 meets the domains in order, group 2 in an order rotated by 4 (FedCTTA Table III) or by 1 (FedTSA Table 4),
group 3 backwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedctta.errors import UserError
from fedctta.streams import Schedule

GROUPS = np.repeat([0, 1, 2], [4, 3, 3])


@dataclass(frozen=True)
class FedCTTACase(Schedule):
    """Case study of FedCTTA Table III: 10 clients in 3 groups, the second rotated by 4, the third backwards."""

    name: ClassVar[str] = "case-fedctta"

    def default_clients(self) -> int:
        """Return the ten clients of the study."""
        return len(GROUPS)

    def plan(self, clients: int, domains: tuple[str, ...], slots: int) -> NDArray[np.int32]:
        """Orders 0..D-1, 4..D-1,0..3, and D-1..0."""
        return three_groups(clients, len(domains), slots, rotated_by=4)


@dataclass(frozen=True)
class FedTSACase(Schedule):
    """Case study of FedTSA Table 4: 10 clients in 3 groups, the second rotated by 1, the third backwards."""

    name: ClassVar[str] = "case-fedtsa"

    def default_clients(self) -> int:
        """Return the ten clients of the study."""
        return len(GROUPS)

    def plan(self, clients: int, domains: tuple[str, ...], slots: int) -> NDArray[np.int32]:
        """Orders 0..D-1, 1..D-1,0, and D-1..0."""
        return three_groups(clients, len(domains), slots, rotated_by=1)


def three_groups(clients: int, domains: int, slots: int, rotated_by: int) -> NDArray[np.int32]:
    """Return domain[T, 10] of the three groups."""
    if clients != len(GROUPS):
        raise UserError(f"the case studies have {len(GROUPS)} clients, not {clients}: use clients={len(GROUPS)}")
    order = np.arange(domains)
    walks = np.stack([order, np.roll(order, -rotated_by), order[::-1]], axis=1)
    return np.repeat(walks, slots, axis=0)[:, GROUPS].astype(np.int32)
