"""How long a round takes on our engine, as Flower messages within one process, and on Flower's simulation engine (ray).

Run as `python benchmarks/flower_engine.py 4 20`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from os import getloadavg
from statistics import median
from time import perf_counter

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedctta.engine.simulation import simulate
from fedctta.engine.tally import Tally
from fedctta.fleet.simulation.engine import run_on_ray, simulate_on_flower
from fedctta.fleet.simulation.grid import InProcessGrid
from fedctta.runs.build import choose_parts, federate
from fedctta.runs.cache import Cache
from fedctta.runs.settings import single

SLOTS = 3


def in_process(server: ServerApp, client: ClientApp, nodes: int) -> None:
    def node(k: int) -> Callable[[Message], Message]:
        context = Context(1, k, {"partition-id": k, "num-partitions": nodes}, RecordDict(), {})
        return lambda message: client(message, context)

    server(InProcessGrid({k: node(k) for k in range(nodes)}), Context(1, 0, {}, RecordDict(), {}))


def timed(name: str, play: Callable[..., Tally]) -> None:
    began, times = perf_counter(), []
    tally = play(on_round=lambda t, tally: times.append(perf_counter()))
    rounds = [late - early for early, late in pairwise(times)]
    print(
        f"  {name:16} first round after {times[0] - began:5.1f} s, median round {1000 * median(rounds):6.1f} ms,"
        f" accuracy {100 * tally.accuracy(len(times)):.2f} %, load {getloadavg()[0]:.1f}",
        flush=True,
    )


def main(clients: int) -> None:
    few = {"niid.clusters": clients} if clients < 5 else {}
    experiment = single({"dataset": "shapes-c", "clients": clients, "slots": SLOTS, "aggregator": "fedctta", **few})
    parts = choose_parts(experiment, torch.device("cpu"), Cache())
    federation, stream = federate(experiment, parts), parts.stream
    print(f"{clients} clients, {len(stream)} rounds, {experiment.adapter} with {experiment.aggregator}")
    flower = partial(simulate_on_flower, experiment, stream)
    for _ in range(2):
        timed("engine=fedctta", partial(simulate, federation, stream))
        timed("without ray", partial(flower, run=in_process))
    timed("engine=flower", partial(flower, run=run_on_ray))
    timed("engine=fedctta", partial(simulate, federation, stream))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for word in sys.argv[1:] or ["4", "20"]:
        main(int(word))
