"""What a round of thousands of clients costs, with everybody and with a few neighbours.

    python benchmarks/scale.py [--clients 100 1000 3000] [--neighbours 0 10] [--dataset shapes-c] [--batch 2]
                               [--slots 1] [--device cpu]
    python benchmarks/scale.py --servers        # 1,000 clients: mixing one large tensor, and kin beside a full W

The first prints one row a case: time in µs per client and round (median over the rounds after the first), how much of
it goes into W, mixing by it and counting it, how much into the probe, and peak memory. On a CPU it is processor time of
one thread, on CUDA the time that passes. Every case runs in a process of its own, so that its peak is its own. `bn` and
`fedctta`, stream niid, four domains; 0 neighbours means everybody.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from kin import cost

from fedctta.aggregators import fedctta
from fedctta.aggregators.common.mixing import mix
from fedctta.aggregators.common.neighbours import Neighbours
from fedctta.engine import rounds
from fedctta.engine.simulation import simulate
from fedctta.engine.tally import Tally
from fedctta.machine import arithmetic, choose_device, peak_memory_mb, reset_peak_memory
from fedctta.runs.build import choose_parts, federate
from fedctta.runs.cache import Cache
from fedctta.runs.settings import single
from fedctta.uploads import server_half
from fedctta.uploads.robust import Robust

DOMAINS = "gaussian_noise+defocus_blur+fog+contrast"
OF_W: tuple[tuple[Any, str], ...] = (
    *((fedctta, "collaboration"), (fedctta, "with_neighbours")),
    *((server_half, "restrict"), (rounds, "overall"), (Robust, "mix"), (Tally, "record_collaboration")),
)


PROBE = ((fedctta.FedCTTA, "_probe"),)


def play(clients: int, neighbours: int, options: argparse.Namespace) -> dict[str, float]:
    """Play one case and return its figures."""
    device = choose_device(options.device)
    values = {"stream": "niid", "adapter": "bn", "aggregator": "fedctta", "samples": "overlap", "domains": DOMAINS}
    asked = {"clients": clients, "batch": options.batch, "slots": options.slots, "fedctta.neighbours": neighbours}
    experiment = single({**values, **asked, "dataset": options.dataset, "device": options.device})
    parts = choose_parts(experiment, device, Cache())
    federation, stream = federate(experiment, parts), parts.stream
    cuda = device.type == "cuda"
    now = time.perf_counter if cuda else time.process_time
    parts = [[0.0], [0.0]]
    if not cuda:  # rounds replayed as a graph have no parts
        for total, functions in zip(parts, (OF_W, PROBE), strict=True):
            for place, name in functions:
                setattr(place, name, timed(getattr(place, name), now, total))
    marks: list[tuple[float, ...]] = []

    def note(t: int, tally: Tally) -> None:
        if cuda:
            torch.cuda.synchronize()
        marks.append((now(), *(total[0] for total in parts)))

    reset_peak_memory(device)
    with arithmetic(experiment.precision):
        simulate(federation, stream, on_round=note)
    each = 1e6 / clients
    # The first round is for warming up.
    spent = (statistics.median(each * (b - a) for a, b in pairwise(column)) for column in zip(*marks, strict=True))
    return dict(zip(("all", "w", "probe"), spent, strict=True)) | {"peak": peak_memory_mb(device)}


def timed(function: Callable[..., Any], now: Callable[[], float], total: list[float]) -> Callable[..., Any]:
    """Return the function, which then adds the time it takes to total[0]."""

    def play(*arguments: Any, **words: Any) -> Any:
        began = now()
        result = function(*arguments, **words)
        total[0] += now() - began
        return result

    return play


def servers(clients: int = 1000, numbers: int = 10_000, neighbours: int = 10, repeats: int = 5) -> None:
    """Print what it takes to mix one large tensor by a full W and by neighbours, and kin's round beside FedAvg's."""
    generator = torch.Generator().manual_seed(0)
    own = {"tensor": torch.rand(clients, numbers, generator=generator)}
    who = torch.randint(clients, (clients, neighbours), generator=generator)
    few = Neighbours(who, torch.full((clients, neighbours), 1 / neighbours))
    for name, weights in (("everybody", torch.full((clients, clients), 1 / clients)), (f"{neighbours}", few)):
        took = []
        for _ in range(repeats):
            began = time.process_time()
            mix(weights, own)
            took.append(time.process_time() - began)
        spent = 1e6 * statistics.median(took) / clients
        print(f"mixing {numbers} numbers, {clients} clients, {name}: {spent:.0f} µs each")
    print(cost(torch.device("cpu"), clients, before=5, rounds=10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", nargs="*", type=int, default=[100, 1000, 3000])
    parser.add_argument("--neighbours", nargs="*", type=int, default=[0, 10])
    parser.add_argument("--dataset", default="shapes-c")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--servers", action="store_true")
    parser.add_argument("--case", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.servers:
        servers()
        return
    if options.case:
        print(json.dumps(play(options.clients[0], options.neighbours[0], options)))
        return
    print("| clients | neighbours | µs | of it W, mixing, counting | the probe | peak MB |", flush=True)
    print("|--:" * 6 + "|", flush=True)
    for clients in options.clients:
        for neighbours in options.neighbours:
            how = ["--dataset", options.dataset, "--device", options.device]
            size = ["--batch", str(options.batch), "--slots", str(options.slots)]
            case = ["--case", "--clients", str(clients), "--neighbours", str(neighbours), *how, *size]
            done = subprocess.run([sys.executable, __file__, *case], check=True, stdout=subprocess.PIPE, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            figures = [found["all"], *((found["w"], found["probe"]) if options.device == "cpu" else ()), found["peak"]]
            words = [f"{figure:.0f}" for figure in figures]
            if options.device != "cpu":
                words[1:1] = ["-", "-"]
            print("| " + " | ".join([str(clients), str(neighbours or "all"), *words]) + " |", flush=True)


if __name__ == "__main__":
    main()
