"""Many real nodes on one machine: does the server play its rounds without an error, and does its memory stay the same?

Starts SuperLink, gate, server and one node process per device, with TLS and a key for each. The devices behind the
nodes are thin: all live in this process, hold the source's statistics of BatchNorm, and answer with those and a little
noise, without images. Prints seconds per round, refusals, the memory of SuperLink, gate and server round by round, and
the CPU seconds per round of every part between the first round and the last: where a round's time goes.

    python benchmarks/fleet_many.py --devices 50 --rounds 10
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from fleet_round import cpu_seconds
from rich.console import Console
from rich.table import Table

from fedctta.adapters import adapters
from fedctta.aggregators import aggregators
from fedctta.core.network import Network
from fedctta.fleet.agreement import terms_of
from fedctta.fleet.device.socket_server import SocketServer
from fedctta.fleet.processes import process_specs
from fedctta.fleet.processes.process_specs import Link
from fedctta.fleet.processes.serve import lead, start_server
from fedctta.fleet.processes.supervisor import Supervisor
from fedctta.fleet.server.examine import form_of
from fedctta.fleet.server.plan import write_plan
from fedctta.fleet.transport.certificates import make_keys
from fedctta.fleet.transport.wire import Parcel
from fedctta.models.zoo import load_model


class ThinDevice:
    """Answers a server's questions as a device with `bn` would that sees a little noise."""

    def __init__(self, name: str, network: Network) -> None:
        self.name, self.network, self.adapter = name, network, adapters.create("bn", {"momentum": 0.3})
        self.client = self.adapter.init(network)
        self.terms = terms_of(network, self.adapter)

    def answer(self, request: Parcel) -> Parcel:
        """Return the answer to a question."""
        if request.kind == "hello":
            forms = {name: form_of(tensor) for name, tensor in self.client.own.items()}
            note = {"device": self.name, **self.terms, "tensors": json.dumps(forms)}
            return Parcel("hello", request.round, note)
        if not request.note["ask"]:
            return Parcel("nothing", request.round, {"received": 1, "reason": "nothing was asked"})
        aggregator = aggregators.create(str(request.note["aggregator"]), json.loads(str(request.note["parameters"])))
        shares = aggregator.shares(self.network, self.client.own)
        arrays = {f"own.{n}": (t * (1 + 1e-3 * torch.randn_like(t))).numpy() for n, t in shares.items()}
        told = {"nonce": request.note["nonce"], "received": 1, "batches": 1, "images": 10}
        note = {"device": self.name, **self.terms, **told}
        return Parcel("upload", request.round, note, arrays)


class Observer:
    """Notes status, memory, CPU seconds and the time when a round is first seen."""

    def __init__(self) -> None:
        self.rounds: dict[int, dict[str, Any]] = {}
        self.memory: dict[int, dict[str, float]] = {}
        self.seconds: dict[int, dict[str, float]] = {}

    def watch(self, supervisor: Supervisor, status: dict[str, Any]) -> None:
        """Look once."""
        now = int(status.get("round", 0))
        if now not in self.rounds:
            self.rounds[now], self.seconds[now] = status, self._count(supervisor)
        parts = [name for name in supervisor.tended if not name.startswith("node-")]  # looking at all takes a core
        self.memory[now] = {name: supervisor.memory(name) / 2**20 for name in parts}

    def _count(self, supervisor: Supervisor) -> dict[str, float]:
        """Return seconds by the clock, and of CPU by part: all nodes together, and this process with its devices."""
        seconds = defaultdict(float, {"clock": time.monotonic(), "thin devices": time.process_time()})
        for name, tended in supervisor.tended.items():
            seconds["nodes" if name.startswith("node-") else name] += cpu_seconds(tended.process.pid)
        return seconds

    def seconds_per_round(self) -> dict[str, float]:
        """Return the seconds per round by part, from the end of the first round to the end of the last."""
        first, last = min(self.seconds.keys() - {0}), max(self.seconds)
        before, after = self.seconds[first], self.seconds[last]
        return {name: (after[name] - before[name]) / (last - first) for name in after}


def play(folder: Path, devices: int, rounds: int, observer: Observer) -> dict[str, Any]:
    """Start everything, play all rounds, end everything; return the server's last status."""
    fleet = {"state": "server", "rounds": rounds, "devices": devices, "max_devices": devices, "deadline": 120.0}
    run = {"dataset": "shapes-c", "adapter": "bn", "aggregator": "fedctta", "bn.momentum": 0.3, "clients": devices}
    plan = folder / "fleet.toml"
    plan.write_text(write_plan({**fleet, "patience": 600.0}, run))
    make_keys(folder / "keys", (), devices)
    network = Network(load_model("resnet8-w16", "shapes"))
    inner = Link("127.0.0.1", process_specs.free_port(), folder / "keys")
    outer = Link("127.0.0.1", process_specs.free_port(), folder / "keys")
    with ExitStack() as stack:
        for k in range(devices):
            stack.enter_context(SocketServer(folder / f"{k}.sock", ThinDevice(f"device-{k}", network).answer))
        supervisor = stack.enter_context(Supervisor(folder / "logs"))
        nodes = folder / "keys" / "nodes"
        flower = start_server(supervisor, inner, folder / "flower", nodes, (outer.host, outer.port))
        for k in range(devices):
            name = f"device-{k}"
            supervisor.start(process_specs.node(outer, name, folder / f"{k}.sock", nodes / f"{name}.key"))
        return lead(supervisor, flower, plan, observer.watch)


def main() -> None:
    """Play and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    observer, began = Observer(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        status = play(Path(folder), options.devices, options.rounds, observer)
    table = Table(title=f"{options.devices} nodes, {options.rounds} rounds, {time.monotonic() - began:.0f} s in all")
    parts = list(observer.memory[max(observer.memory)])
    for column in ("round", "seconds", *(f"{name}, MB" for name in parts)):
        table.add_column(column, justify="right")
    for number, told in sorted(observer.rounds.items()):
        sizes = (f"{observer.memory[number].get(name, 0):.0f}" for name in parts)
        table.add_row(str(number), f"{told.get('seconds_of_round', 0):.1f}", *sizes)
    console = Console()
    console.print(table)
    uploads = [line["uploads"] for line in status["history"]]
    clock, *parts = (f"{name} {spent:.1f}" for name, spent in observer.seconds_per_round().items())
    console.print(f"seconds per round after the first: {clock}; CPU: {', '.join(parts)}")
    console.print(f"uploads per round {uploads}; refused {status['refused']}; empty rounds {status['empty_rounds']}")


if __name__ == "__main__":
    main()
