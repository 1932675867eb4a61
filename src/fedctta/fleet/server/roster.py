"""Who takes part: device names, their rows at the server, their nodes, and their refusals.

Devices that join together get rows in the order of their names. Rows are never reused: a device that returns gets its
row again. Too many refusals in a row put a device in quarantine for some rounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fedctta.fleet.server.examine import UploadRefused


@dataclass
class Roster:
    """Rows by device name, nodes by row, and refusals."""

    room: int
    quarantine: int = 3
    quarantine_rounds: int = 10
    names: list[str] = field(default_factory=list)
    nodes: dict[int, int] = field(default_factory=dict)  # node id -> row
    refused_in_a_row: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    free_again: dict[str, int] = field(default_factory=dict)  # device -> first round in which it counts again

    def admit(self, hellos: dict[int, str], online: Iterable[int]) -> dict[int, UploadRefused]:
        """Give every node that said hello its device's row; return those who cannot have one, and why.

        A name belongs to the first node that said it, for as long as that node is online.
        """
        there, turned_away = set(online), {}
        for node, name in sorted(hellos.items(), key=lambda item: (item[1], item[0])):
            holder = next((n for n, row in self.nodes.items() if self.names[row] == name and n != node), None)
            if holder is not None and holder in there:
                turned_away[node] = UploadRefused(
                    f"device {name!r} already speaks through node {holder}: use another name"
                )
            elif name not in self.names and len(self.names) >= self.room:
                turned_away[node] = UploadRefused(f"all {self.room} places are taken: raise max_devices for a new run")
            else:
                if holder is not None:
                    del self.nodes[holder]
                if name not in self.names:
                    self.names.append(name)
                self.nodes[node] = self.names.index(name)
        return turned_away

    def refuse(self, name: str, round_: int) -> bool:
        """Count a refusal; return whether it puts the device in quarantine."""
        self.refused[name] = self.refused.get(name, 0) + 1
        self.refused_in_a_row[name] = self.refused_in_a_row.get(name, 0) + 1
        if self.refused_in_a_row[name] < self.quarantine:
            return False
        self.free_again[name] = round_ + 1 + self.quarantine_rounds
        self.refused_in_a_row[name] = 0
        return True

    def accept(self, name: str) -> None:
        """Count an upload that was used."""
        self.refused_in_a_row.pop(name, None)

    def ignored(self, name: str, round_: int) -> bool:
        """Whether the device is in quarantine in this round."""
        return round_ < self.free_again.get(name, 0)
