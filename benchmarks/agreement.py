"""Whether liftings and precisions agree: accuracy over a full run, and the share of equal predictions.

Every way plays the same stream and is compared with the first. Bars: liftings differ by at most 0.05 points and on at
most 0.1 % of the images, bf16 by at most 0.3 points.

    python benchmarks/agreement.py dataset=cifar10-c adapter=bn,grad --ways graph,vmap,loop,tf32,bf16
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from time import perf_counter

from fedctta.engine.simulation import simulate
from fedctta.machine import arithmetic, choose_device, hardware
from fedctta.runs.build import choose_parts, federate
from fedctta.runs.cache import Cache
from fedctta.runs.settings import Experiment, expand, parse_words

WAYS = {
    "graph": {"lift": "graph"},
    "vmap": {"lift": "vmap"},
    "loop": {"lift": "loop"},
    "tf32": {"precision": "tf32"},
    "bf16": {"precision": "bf16"},
}


def play(experiment: Experiment, cache: Cache):
    device = choose_device(experiment.device)
    parts = choose_parts(experiment, device, cache)
    federation, stream = federate(experiment, parts), parts.stream
    began = perf_counter()
    with arithmetic(experiment.precision):
        tally = simulate(federation, stream, predictions=True)
    return tally, perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", default=["dataset=cifar10-c"])
    on_gpu = choose_device("auto").type == "cuda"
    parser.add_argument("--ways", default=",".join(WAYS) if on_gpu else "vmap,loop")
    arguments = parser.parse_args()
    ways, cache = arguments.ways.split(","), Cache()
    print(f"{hardware(choose_device('auto'))}; compared with {ways[0]}\n")
    print(
        "| method | way | seconds | accuracy | difference (points) | equal predictions (%) |\n|:--|:--|--:|--:|--:|--:|"
    )
    for experiment in expand(parse_words(arguments.words)):
        first, accuracy = None, 0.0
        for way in ways:
            tally, seconds = play(replace(experiment, **WAYS[way]), cache)
            classes, mine = tally.classes.cpu(), 100 * tally.accuracy(len(tally.correct))
            if first is None:
                first, accuracy = classes, mine
            equal = 100 * (classes == first).float().mean().item()
            name = f"{experiment.adapter} + {experiment.aggregator}, {experiment.stream}"
            print(f"| {name} | {way} | {seconds:.1f} | {mine:.3f} | {mine - accuracy:+.3f} | {equal:.3f} |", flush=True)


if __name__ == "__main__":
    main()
