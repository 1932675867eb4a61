"""Whether a device notices without labels that adapting does harm, and how well it estimates its accuracy.

    python benchmarks/health.py skew [--model wrn-40-2] [--adapters tent,cotta,roid] [--seeds 0,1] [--clients 1]
    python benchmarks/health.py niid [--model resnet8] [--slots 5] ...

Each client of a CIFAR-10-C stream is one device with `fedctta.adapt` and without a server. `skew` is the protocol of
the preset `pfedbbn-skew` at delta 0.01 (batches of 200 of very few classes), where adapters that normalise by the batch
collapse; `niid` is the default stream (batches of 10), where they help. Columns:

    source, no guard, guard   accuracy in percent: the source model's, and the adapter's with guard="off" and "reset"
    alarms                    with guard="off" and with guard="reset"
    delay                     the most batches from the first of 20 whose mean accuracy is 10 points below the
                              source's to the alarm
    error                     of the estimate of accuracy with guard="off", in points: the median over spans of 40
                              batches (a third of the stream if it is shorter), estimate and truth averaged over each
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

import fedctta
from fedctta.adapters import Adapter, adapters
from fedctta.health.guard import Guard
from fedctta.models.inputs import to_input
from fedctta.models.zoo import load_model
from fedctta.runs.build import check_parts
from fedctta.runs.cache import Cache
from fedctta.runs.datasets import public_images
from fedctta.runs.settings import Experiment, expand, parse_words
from fedctta.streams import Stream

PROTOCOLS = {
    "skew": "batch=200 samples=dirichlet dirichlet.delta=0.01 niid.clusters=5 clients=10",
    "niid": "batch=10 clients=20",
}
SPAN, DROP, FIRST = 40, 0.1, 20


@dataclass
class Track:
    """Accuracy per batch of a device, and what it knew of it."""

    right: list[float] = field(default_factory=list)
    estimate: list[float] = field(default_factory=list)
    alarms: list[int] = field(default_factory=list)


def walk(stream: Stream, client: int, model: fedctta.AdaptedModel) -> Track:
    """Let a device predict its part of the stream."""
    track = Track()
    for t in range(len(stream)):
        slot = stream.slot(t)
        classes = model(to_input(slot.images[client])).argmax(-1).numpy()
        track.right.append(float((classes == slot.labels[client]).mean()))
        track.estimate.append(model.health.accuracy if model.health.accuracy is not None else np.nan)
    track.alarms = [alarm.batch for alarm in model.health.alarms]
    return track


def delay(source: Track, free: Track) -> int | None:
    """Return how many batches after a drop began the alarm came; None without a drop, -1 without an alarm."""
    gap = np.convolve(np.array(source.right) - np.array(free.right), np.ones(FIRST) / FIRST, "valid")
    if not (gap > DROP).any():
        return None
    began = int((gap > DROP).argmax())
    later = [alarm for alarm in free.alarms if alarm >= began - SPAN]
    return max(0, later[0] - began) if later else -1


def errors(track: Track) -> list[float]:
    """Return the errors of the estimate, averaged over spans of batches."""
    span = min(SPAN, len(track.right) // 3)
    right, estimate = np.array(track.right), np.array(track.estimate)
    ends = range(span, len(right) + 1, span)
    return [abs(float(np.nanmean(estimate[end - span : end]) - right[end - span : end].mean())) for end in ends]


def measure(experiment: Experiment, stream: Stream, adapter: Adapter, clients: int) -> str:
    """Return the row of one adapter and seed."""
    module = load_model(experiment.model, experiment.dataset)
    asked, cpu = adapter.source_images, torch.device("cpu")
    images = public_images(experiment, stream.data, asked, cpu) if asked else None

    def tracks(method: str | Adapter, guard: Guard, check: int = 10) -> list[Track]:
        given = None if method == "none" else images
        return [
            walk(stream, k, fedctta.adapt(module, method, guard=guard, check=check, source_images=given))
            for k in range(clients)
        ]

    def percent(values: list[Track]) -> str:
        mean: NDArray[np.float64] = np.mean([track.right for track in values])
        return f"{100 * mean:.1f}"

    source, free, guarded = tracks("none", "off", check=0), tracks(adapter, "off"), tracks(adapter, "reset")
    delays = [found for pair in zip(source, free, strict=True) if (found := delay(*pair)) is not None]
    late = "-" if not delays else "no alarm" if -1 in delays else str(max(delays))
    alarms = f"{sum(len(t.alarms) for t in free)} and {sum(len(t.alarms) for t in guarded)}"
    error = 100 * float(np.median([e for track in free for e in errors(track)]))
    cells = (percent(source), percent(free), percent(guarded), alarms, str(clients * len(stream)), late, f"{error:.1f}")
    return f"| {adapter.name} | {experiment.seed} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("protocol", choices=PROTOCOLS)
    parser.add_argument("--model", default="resnet8")
    parser.add_argument("--adapters", default="tent,roid")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--slots", type=int, default=5)
    options = parser.parse_args()
    print("| adapter | seed | source | no guard | guard | alarms | batches | delay | error |")
    print("|:--|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name in options.adapters.split(","):
        adapter = adapters.create(name, {"views": 2} if name in ("cotta", "memo") else {})
        for seed in options.seeds.split(","):
            words = f"dataset=cifar10-c model={options.model} stream=niid seed={seed} slots={options.slots}"
            (experiment,) = expand(parse_words([*words.split(), *PROTOCOLS[options.protocol].split()]))
            stream = check_parts(experiment, torch.device("cpu"), Cache()).stream
            print(measure(experiment, stream, adapter, options.clients), flush=True)


if __name__ == "__main__":
    main()
