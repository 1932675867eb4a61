"""Which ratios of `fedctta bench` have moved since they were committed.

    python benchmarks/bench_check.py [--write] [--device auto] [--repeat 3]

A handful of cells is measured, and their ratios (never times: those depend on the machine) are compared with those in
bench_check.json for the same kind of device. One that moved by more than 15 % is named, and the exit code is 1. Two
ways are compared turn by turn, by the fastest round of each: what else runs on the machine can only add to it, and
changes slowly. The ratio is the median over turns; times are CPU seconds of one thread. A ratio that has moved is
measured again, up to `--repeat` times in all, before it is believed. `--write` renews the file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from fedctta.bench import make_plan, run
from fedctta.bench.cells import MIN_ROUNDS
from fedctta.bench.measure import Timing
from fedctta.files import whole
from fedctta.machine import choose_device, hardware, keep_freed_memory

FILE = Path(__file__).with_suffix(".json")
LIMIT = 0.15
CELLS = {  # cells by (model, adapter, aggregator, clients), and the ratios to compare
    ("resnet8-w16", "bn", "fedavg", 20): ("b/a", "c/b"),
    ("resnet8-w16", "tent", "fedctta", 20): ("b/a", "c/b"),
    ("resnet8-w16", "grad", "fedavg", 20): ("b/a", "c/b"),
    ("resnet8-w16", "bn", "kin", 20): ("b/a",),
    ("resnet8-w16", "recall", "recall", 20): ("b/a",),
}
Key = tuple[str, str, str, int]


def measure(cells: Iterable[Key], device: str, rounds: int) -> dict[str, float]:
    """Return the ratios of cells by their names."""
    found = {}
    for cell in cells:
        model, adapter, aggregator, clients = cell
        wanted = CELLS[cell]
        plan = make_plan(
            models=model,
            adapters=adapter,
            aggregators=aggregator,
            clients=str(clients),
            ways=",".join(sorted({*"/".join(wanted).split("/")})),
            device=device,
            rounds=rounds,
        )
        (row,) = run(plan)
        for ratio in wanted:
            over, under = (row.timing(way) for way in ratio.split("/"))
            if over is None or under is None:
                sys.exit(f"{row.cell.label}: {ratio} could not be measured")
            found[f"{row.cell.label} {ratio}"] = compare(over, under)
    return found


def compare(over: Timing, under: Timing) -> float:
    """Return how many times as long one way takes as another: the median over turns, of the fastest rounds of each."""
    turns = zip(*(batched(each.seconds, MIN_ROUNDS) for each in (over, under)), strict=True)
    return median(min(one) / min(other) for one, other in turns)


def batched(seconds: Sequence[float], size: int) -> list[Sequence[float]]:
    """Return the rounds of every turn."""
    return [seconds[start : start + size] for start in range(0, len(seconds), size)]


def moved(committed: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
    """Return the names of ratios that are new, gone, or more than the limit away from what was committed."""
    return [
        name
        for name in {**committed, **now}
        if name not in committed or name not in now or abs(now[name] / committed[name] - 1) > LIMIT
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="renew the committed ratios of this kind of device")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=30, help="of every way")
    parser.add_argument("--repeat", type=int, default=3, help="measurements before a ratio has moved")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = choose_device(options.device)
    known: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    if not options.write and device.type not in known:
        sys.exit(f"{FILE.name} has no ratios of {device.type}: write them with --write")
    keep_freed_memory()  # as `fedctta bench` does
    now = measure(CELLS, options.device, options.rounds)
    if options.write:
        again = measure(CELLS, options.device, options.rounds)
        ratios = {name: round((now[name] * again[name]) ** 0.5, 3) for name in now}
        known[device.type] = {"hardware": hardware(device), "torch": torch.__version__, "ratios": ratios}
        with whole(FILE) as part:
            part.write_text(json.dumps(known, indent=1) + "\n")
        print(*(f"{name}: {now[name]:.2f} and {again[name]:.2f}" for name in now), sep="\n")
        return
    committed = known[device.type]["ratios"]
    for _ in range(options.repeat - 1):
        doubtful = [cell for cell in CELLS if any(name.startswith(_label(cell)) for name in moved(committed, now))]
        if not doubtful:
            break
        for name, ratio in measure(doubtful, options.device, options.rounds).items():
            if name in committed:  # the nearest to what was committed counts: noise moves it away
                now[name] = min(now[name], ratio, key=lambda value: abs(value / committed[name] - 1))
    late = moved(committed, now)
    for name in {**committed, **now}:
        change = f"{now[name] / committed[name] - 1:+.0%}" if name in committed and name in now else "new or gone"
        was = f"{committed.get(name, float('nan')):.2f}"
        print(f"{name}: {was} -> {now.get(name, float('nan')):.2f}, {change}{'  MOVED' if name in late else ''}")
    if late:
        sys.exit(f"{len(late)} ratios moved by more than {LIMIT:.0%} on {hardware(device)}")


def _label(cell: Key) -> str:
    model, adapter, aggregator, clients = cell
    return f"{model} {adapter}+{aggregator} {clients} clients"


if __name__ == "__main__":
    main()
