"""What a round costs a fleet's server: many devices within this process, for every aggregator that has no training.

    python benchmarks/fleet_server.py [--devices 200] [--rounds 8] [--dataset shapes-c] [--only fedctta kin]

The server is the one of a real fleet, with its messages, checks, rounds and files; only Flower's network is missing.
Devices see random images of four looks, adapt to a batch in every round, and upload; their time is not counted. Times
are CPU time of one thread in ms, so that other work on the machine counts little: the median of all rounds after the
second. `close` is the aggregation, after the last upload; `arrival` is what an aggregator computes of uploads as they
arrive; `messages` is packing, sending, unpacking and checking; `files` the checkpoint, W and the status. The bar is for
`close`; exits with 1 if an aggregator is above it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict

from fedctta.adapters import Adapter, adapters
from fedctta.aggregators import aggregators
from fedctta.core.network import Network
from fedctta.engine.first_clients import first_client
from fedctta.errors import UserError
from fedctta.fleet.device.handover import Handover, Snapshot
from fedctta.fleet.device.request_handler import RequestHandler
from fedctta.fleet.server.conductor import Conductor
from fedctta.fleet.server.plan import Plan, build, make_plan
from fedctta.fleet.simulation.grid import InProcessGrid
from fedctta.fleet.transport import wire
from fedctta.fleet.transport.flower_messages import PARCEL, Questions

BAR_MS = 50.0
TRAINED = ("fedtsa",)
COLUMNS = ("close", "arrival", "messages", "files", "round")
BATCH = 10


class Stopwatch:
    """Adds up the server's seconds by what they are spent on; devices' seconds are taken out wherever they fall."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self.away = 0.0

    def now(self) -> float:
        """Return the time without what devices took."""
        return time.process_time() - self.away

    def of(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, whose seconds are then counted under a name."""

        def timed(*arguments: Any, **words: Any) -> Any:
            began = self.now()
            try:
                return function(*arguments, **words)
            finally:
                self.spent[name] += self.now() - began

        return timed

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Do not count what happens within."""
        began = time.process_time()
        yield
        self.away += time.process_time() - began


class Device:
    """A device of the fleet as a function of messages: it adapts to new images and lets the real handler answer."""

    def __init__(self, number: int, network: Network, adapter: Adapter, plan: Plan, watch: Stopwatch) -> None:
        self.network, self.adapter, self.watch = network, adapter, watch
        self.random = torch.Generator().manual_seed(number)
        self.look, self.shape = number % 4, (BATCH, 3, plan.size, plan.size)
        self.client = first_client(network, adapter, lambda count: torch.rand(count, *self.shape[1:]), BATCH, 0, number)
        self.handover = Handover(Snapshot(self.client, None, 0))
        self.handler = RequestHandler(f"device-{number:04}", network, adapter, self.handover, spare=lambda: network)

    def __call__(self, message: Message) -> Message:
        """Answer a message."""
        with self.watch.elsewhere(), torch.no_grad():
            request = wire.unpack(message.content.array_records[PARCEL][PARCEL].numpy(), 1 << 30)
            if request.kind == "step":
                self.see()
            flat = wire.pack(self.handler.answer(request))
            return Message(RecordDict({PARCEL: ArrayRecord({PARCEL: Array(flat)})}), reply_to=message)

    def see(self) -> None:
        """Adapt to a batch of this device's look."""
        images = torch.rand(self.shape, generator=self.random) * (0.4 + 0.2 * self.look)
        self.handover.take()
        self.client = self.adapter.adapt(self.network, self.client, images)
        self.handover.publish(Snapshot(self.client, images, self.handover.moment.batches + 1))


def measure(aggregator: str, options: argparse.Namespace) -> dict[str, float]:
    """Play the rounds of one aggregator and return the medians of a round, in ms."""
    watch, marks = Stopwatch(), []
    adapter = aggregators.classes()[aggregator].partner or options.adapter
    with tempfile.TemporaryDirectory() as folder:
        fleet = {"devices": options.devices, "max_devices": options.devices, "rounds": options.rounds, "poll": 0.001}
        words = {"dataset": options.dataset, "adapter": adapter, "aggregator": aggregator}
        plan = make_plan({**fleet, "state": folder, "deadline": 600.0}, words)
        hub, examiner = build(plan)
        method = plan.experiment.method(adapters, adapter)
        devices = {k: Device(k, hub.server.network, method, plan, watch) for k in range(options.devices)}
        conductor = Conductor(plan, hub, examiner, Questions(InProcessGrid(devices), plan.ttl))
        for name, function in (("close", hub.close), ("arrival", hub.prepare)):
            object.__setattr__(hub, function.__name__, watch.of(name, function))  # a frozen dataclass
        talk, ledger = conductor.letters, conductor.ledger
        talk.ask, talk.listen = watch.of("messages", talk.ask), watch.of("messages", talk.listen)
        ledger.save, ledger.write_status = watch.of("files", ledger.save), watch.of("files", ledger.write_status)
        ledger.write_collaboration = watch.of("files", ledger.write_collaboration)
        played = conductor._close

        def close(seconds: float) -> None:
            played(seconds)
            marks.append({"round": watch.now(), **watch.spent})

        conductor._close = close
        conductor.lead()
        ledger.close()
    spent = [{key: 1e3 * (b[key] - a[key]) for key in b} for a, b in pairwise(marks[1:])]
    return {key: statistics.median(one[key] for one in spent) for key in spent[0]}


def main() -> int:
    """Print a row per aggregator; 1 if one is above the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--dataset", default="shapes-c")
    parser.add_argument("--adapter", default="bn", help="of aggregators that take any")
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.only or [name for name in aggregators.classes() if name not in TRAINED]
    above = False
    print(f"| aggregator | {' | '.join(COLUMNS)} |", flush=True)
    print("|:--" + "|--:" * len(COLUMNS) + "|", flush=True)
    for name in names:
        try:
            found = measure(name, options)
        except UserError as error:
            if name in options.only:
                raise
            print(f"| {name} | {error} |{' |' * (len(COLUMNS) - 1)}", flush=True)
            continue
        above |= found["close"] > BAR_MS
        cells = (f"{found.get(key, 0):.1f}" for key in COLUMNS)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print(f"\nbar: {BAR_MS:.0f} ms to close a round{' (above the bar)' if above else ''}")
    return int(above)


if __name__ == "__main__":
    sys.exit(main())
