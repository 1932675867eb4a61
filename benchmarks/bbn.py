"""What a round of BBN (three networks, two of them trained) costs over one of Tent (one network).

    python benchmarks/bbn.py [--model wrn-40-2] [--clients 10] [--batch 200] [--repeats 3] [--lift vmap] [--device auto]

One run prints, for every adapter, seconds per round (adapt, average, predict) of this many clients, and the ratio to
Tent. Each is the median over interleaved repeats, so that a busy machine slows all alike. Counted in forward passes,
with a backward pass to scales and shifts as one more: Tent 1 + 1 and 1 to predict; BBN 1 to label, 1 for the source,
1 + 1 for teacher and student each, and 1 to predict. That is 7 / 3.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from fedctta.adapters import adapters
from fedctta.aggregators import Server, aggregators
from fedctta.core.clients import by_loop, by_vmap
from fedctta.core.network import Network
from fedctta.engine.rounds import Federation
from fedctta.machine import arithmetic, choose_device, peak_memory_mb
from fedctta.models import build

LIFTS = {"vmap": by_vmap, "loop": by_loop}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="wrn-40-2")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--adapters", default="tent,bbn")
    parser.add_argument("--lift", choices=list(LIFTS), default="vmap")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device, names = choose_device(options.device), options.adapters.split(",")
    network = Network(build(options.model, options.classes), device)
    server = Server(network, LIFTS[options.lift], 0, (3, 32, 32), options.clients, lambda n: torch.zeros(n, 3, 32, 32))
    federations = {name: Federation(adapters.create(name), aggregators.create("fedavg"), server) for name in names}
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(options.clients, options.batch, 32, 32, 3, generator=generator).movedim(-1, -3).to(device)
    active = torch.ones(options.clients, dtype=torch.bool, device=device)

    took: dict[str, list[float]] = {name: [] for name in names}
    with torch.no_grad(), arithmetic():
        states = {name: federation.start() for name, federation in federations.items()}
        for t in range(options.repeats + 1):
            for name, federation in federations.items():
                began = time.perf_counter()
                states[name], outcome = federation.play(states[name], t, x, active, None)
                outcome.logits.argmax(-1).cpu()  # waits for the device
                if t:  # the first is for warming up
                    took[name].append(time.perf_counter() - began)

    print(f"{options.model}, {options.clients} clients, batch {options.batch}, {options.lift}, {device}")
    print(f"peak memory {peak_memory_mb(device):.0f} MB")
    base = statistics.median(took[names[0]])
    for name, times in took.items():
        spent = statistics.median(times)
        print(
            f"{name:8}{spent:9.3f} s a round (from {min(times):.3f} to {max(times):.3f}),"
            f" {spent / base:.2f} times {names[0]}"
        )


if __name__ == "__main__":
    main()
