"""What the server tells of itself: the content of status.json, and why it waits."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from fedctta.fleet.server.collaboration import Hub, Standing
from fedctta.fleet.server.ledger import Ledger, ServerProgress
from fedctta.fleet.server.plan import Plan
from fedctta.fleet.server.status_table import read_status

if TYPE_CHECKING:
    from fedctta.fleet.server.device_dialogue import DeviceDialogue

log = logging.getLogger("fedctta.fleet")

ROUNDS = 200  # of which times, uploads and bytes are remembered
PACKAGES = ("fedctta", "torch", "flwr")


class Reporter:
    """Describes one server. The last rounds are in its status, and so survive a restart."""

    def __init__(self, plan: Plan, hub: Hub, ledger: Ledger, place: ServerProgress, letters: DeviceDialogue) -> None:
        self.plan, self.hub, self.ledger, self.place, self.letters = plan, hub, ledger, place, letters
        before = read_status(ledger.folder)
        same = before.get("run") == place.run and isinstance(before.get("history"), list)
        self._history = (
            [line for line in before["history"] if line.get("round", place.round) < place.round] if same else []
        )
        self._bytes = (place.bytes_up, place.bytes_down)
        self._why = ""

    def note_round(self, round_: int, uploads: int, seconds: float) -> None:
        """Remember a round that was closed."""
        up, down = self.place.bytes_up, self.place.bytes_down
        line = {"round": round_, "time": round(time.time(), 1), "seconds": round(seconds, 3), "uploads": uploads}
        line |= {"bytes_up": up - self._bytes[0], "bytes_down": down - self._bytes[1]}
        self._history, self._bytes = [*self._history[1 - ROUNDS :], line], (up, down)

    def describe(self, doing: str, online: Collection[int], standing: Standing) -> dict[str, Any]:
        """Return the status."""
        place, roster = self.place, self.letters.roster
        last = self._history[-1] if self._history else {}
        return {
            "doing": doing,
            "why": self._note_wait(online) if doing.startswith("waiting") else "",
            "run": place.run,
            "round": place.round,
            "rounds": self.plan.rounds,
            "empty_rounds": place.empty_rounds,
            "seconds_of_round": last.get("seconds", 0.0),
            "bytes_up": place.bytes_up,
            "bytes_down": place.bytes_down,
            "refused": sum(roster.refused.values()),
            "method": self._method(),
            "versions": versions(),
            "expected": self._expected(),
            "nodes": self._devices(online, standing),
            "history": self._history,
        }

    def _note_wait(self, online: Collection[int]) -> str:
        """Return why the server waits, and log it if that has changed."""
        before, self._why = self._why, self.explain_wait(online)
        if self._why != before:
            log.info("waiting for devices: %s", self._why)
        return self._why

    def explain_wait(self, online: Collection[int]) -> str:
        """Say for which devices the server waits, and why they are not here yet, as far as it knows."""
        here, names = self._here(online), self._expected() or self.letters.roster.names
        said = [f"{len(here)} of {self.plan.devices} are here{_listed(here)}"]
        strangers = sorted(set(online) - self.letters.roster.nodes.keys() - self.letters.hellos.keys())
        if missing := [name for name in names if name not in here]:
            absent = len(strangers) < len(missing)
            advice = ": are their nodes running, and do they reach the server?" if absent else ""
            said.append(f"missing: {', '.join(missing)}{advice}")
        quiet = [node for node in strangers if node not in self.letters.silence]
        if quiet:
            said.append(f"nodes that are online and have not said yet whose they are: {', '.join(map(str, quiet))}")
        said += [f"node {node} {self.letters.silence[node]}" for node in strangers if node not in quiet]
        return "; ".join(said)

    def _expected(self) -> list[str]:
        """Return the names of devices that have keys, among them those that were never heard."""
        return sorted(set((self.letters.bindings.names or {}).values()))

    def _here(self, online: Collection[int]) -> list[str]:
        roster, hellos = self.letters.roster, self.letters.hellos
        joined = {roster.names[row] for node, row in roster.nodes.items() if node in online}
        return sorted(joined | {name for node, name in hellos.items() if node in online})

    def _method(self) -> dict[str, str]:
        experiment = self.plan.experiment
        named = {"adapter": experiment.adapter, "aggregator": experiment.aggregator, "dataset": experiment.dataset}
        return {key: str(value) for key, value in {**named, "model": experiment.model}.items()}

    def _devices(self, online: Collection[int], standing: Standing) -> list[dict[str, Any]]:
        roster, letters = self.letters.roster, self.letters
        node_of = {row: node for node, row in roster.nodes.items()}
        silence = {node: why for node, why in letters.unanswered.items() if node in online}
        domains = self.hub.aggregator.locate(standing.memory)
        return [
            {
                "device": name,
                "node": str(node_of.get(row, "")),
                "online": node_of.get(row) in online and node_of.get(row) not in silence,
                "silence": silence.get(node_of.get(row, -1), ""),
                "refused": roster.refused.get(name, 0),
                "ignored": roster.ignored(name, self.place.round),
                "health": letters.health.get(row, {}),
                "facts": letters.facts.get(name, {}),
                "last_round": letters.last_round.get(row),
                "domains": domains.get(row, []),
            }
            for row, name in enumerate(roster.names)
        ]


@cache
def versions() -> dict[str, str]:
    """Return the versions of the packages that a server is made of."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _listed(names: list[str]) -> str:
    return f" ({', '.join(names)})" if names else ""
