"""A schedule of the user's own, from a TOML file.

    [[group]]
    clients = 3                                # three clients ...
    visits = ["fog", ["snow", 5], "absent"]    # ... meet fog for `slots` slots, snow for 5, then stay away

Groups follow each other; shorter schedules are filled up with "absent".
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedctta.errors import UserError, unknown
from fedctta.streams import ABSENT, Schedule


@dataclass(frozen=True)
class Custom(Schedule):
    """Groups of clients with their visits, read from a TOML file (custom.file=PATH)."""

    name: ClassVar[str] = "custom"
    file: str = ""

    def default_clients(self) -> int:
        """Return as many clients as the file describes."""
        return sum(size for size, _ in read_groups(self.file))

    def plan(self, clients: int, domains: tuple[str, ...], slots: int) -> NDArray[np.int32]:
        """Lay the groups' visits side by side."""
        groups = read_groups(self.file)
        count = sum(size for size, _ in groups)
        if clients != count:
            raise UserError(f"{self.file} describes {count} clients, not {clients}: use clients={count}")
        rows = [walk(visits, domains, slots, self.file) for size, visits in groups for _ in range(size)]
        plan = np.full((max(map(len, rows)), count), ABSENT, np.int32)
        for i, row in enumerate(rows):
            plan[: len(row), i] = row
        return plan


def read_groups(file: str) -> list[tuple[int, list[Any]]]:
    """Return (clients, visits) of every group in the file."""
    if not file:
        raise UserError("stream=custom needs a schedule: add custom.file=PATH")
    try:
        content = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no schedule file {file}: check the path") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"cannot read the schedule {file}: {error}") from None
    groups = content.get("group")
    if set(content) != {"group"} or not isinstance(groups, list) or not groups:
        raise UserError(f"{file} must consist of [[group]] tables with keys clients and visits")
    for group in groups:
        fits = isinstance(group, dict) and set(group) == {"clients", "visits"} and isinstance(group["visits"], list)
        if not fits or type(group["clients"]) is not int or group["clients"] < 1:
            raise UserError(f"{file}: every [[group]] has exactly two keys, clients (1 or more) and visits (a list)")
    return [(group["clients"], group["visits"]) for group in groups]


def walk(visits: list[Any], domains: tuple[str, ...], slots: int, file: str) -> list[int]:
    """Return the domain index of every slot."""
    row: list[int] = []
    for visit in visits:
        if not (isinstance(visit, str) or (isinstance(visit, list) and len(visit) == 2)):
            raise UserError(f"{file}: a visit is a name or [name, slots], not {visit}")
        name, length = (visit, slots) if isinstance(visit, str) else visit
        if name != "absent" and name not in domains:
            raise unknown(f"domain in {file}", str(name), [*domains, "absent"])
        if type(length) is not int or length < 1:
            raise UserError(f"{file}: {visit} must last a whole number of slots, at least 1")
        row += [ABSENT if name == "absent" else domains.index(name)] * length
    return row
