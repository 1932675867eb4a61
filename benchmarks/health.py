"""Whether a device notices without labels that adapting does harm, and how well it estimates its accuracy.

    python benchmarks/health.py skew [--model wrn-40-2] [--adapters tent,cotta,roid] [--seeds 0,1] [--clients 1]
    python benchmarks/health.py niid [--model resnet8] [--slots 5] [--device cuda --processes 12] ...

Each client of a CIFAR-10-C stream is one device with `fedctta.adapt` and without a server. `skew` is the protocol of
the preset `pfedbbn-skew` at delta 0.01 (batches of 200 of very few classes), where adapters that normalise by the batch
collapse; `niid` is the default stream (batches of 10), where they help. `--adapters all` takes every adapter that needs
nothing learnt beforehand. Columns:

    source, no guard, guard   accuracy in percent: the source model's, and the adapter's with guard="off" and "reset"
    alarms                    with guard="off" and with guard="reset"
    delay                     the most batches from the first of 20 whose mean accuracy is 10 points below the
                              source's to the alarm, with guard="off"
    error                     of the estimate of accuracy with guard="off" and with guard="reset", in points: the median
                              over spans of 40 batches (a third of the stream if it is shorter), estimate and truth
                              averaged over each

The last lines are the bars: the worst loss with the guard, the longest delay, alarms with guard="reset" where adapting
does not end below the source, and the median error with guard="reset".
"""

from __future__ import annotations

import argparse
import multiprocessing
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

import fedctta
from fedctta.adapters import Adapter, adapters
from fedctta.errors import UserError
from fedctta.health.guard import Guard
from fedctta.models.inputs import to_input
from fedctta.models.zoo import load_model
from fedctta.runs.build import check_parts
from fedctta.runs.cache import Cache
from fedctta.runs.datasets import public_images
from fedctta.runs.settings import expand, parse_words
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
        classes = model(to_input(slot.images[client])).argmax(-1).cpu().numpy()
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


@dataclass
class Row:
    """What one adapter and seed gave: accuracies and errors of estimates in percent."""

    adapter: str
    seed: int
    source: float
    free: float
    guarded: float
    alarms: tuple[int, int]
    batches: int
    delays: list[int]
    errors: tuple[list[float], list[float]]

    def __str__(self) -> str:
        """Return the row of the table."""
        late = "-" if not self.delays else "no alarm" if -1 in self.delays else str(max(self.delays))
        pairs = (" and ".join(map(str, self.alarms)), " and ".join(f"{np.median(e):.1f}" for e in self.errors))
        accuracies = (f"{value:.1f}" for value in (self.source, self.free, self.guarded))
        cells = (self.adapter, str(self.seed), *accuracies, pairs[0], str(self.batches), late, pairs[1])
        return f"| {' | '.join(cells)} |"


def measure(options: argparse.Namespace, job: tuple[str, int]) -> Row | str:
    """Return what one adapter and seed give, or why they give nothing."""
    torch.set_num_threads(1)
    name, seed = job
    adapter = adapters.create(name, {"views": 2} if name in ("cotta", "memo") else {})
    words = f"dataset=cifar10-c model={options.model} stream=niid seed={seed} slots={options.slots}"
    (experiment,) = expand(parse_words([*words.split(), *PROTOCOLS[options.protocol].split()]))
    stream = check_parts(experiment, torch.device("cpu"), Cache()).stream
    device = torch.device(options.device)
    module = load_model(experiment.model, experiment.dataset).to(device)
    asked = adapter.source_images
    images = public_images(experiment, stream.data, asked, device) if asked else None

    def tracks(method: str | Adapter, guard: Guard, check: int = 10) -> list[Track]:
        given = None if method == "none" else images
        return [
            walk(stream, k, fedctta.adapt(module, method, guard=guard, check=check, source_images=given))
            for k in range(options.clients)
        ]

    def percent(found: list[Track]) -> float:
        return 100 * float(np.mean([track.right for track in found]))

    try:
        source, free, guarded = tracks("none", "off", check=0), tracks(adapter, "off"), tracks(adapter, "reset")
    except UserError as error:
        return f"{name}: {error}"
    delays = [found for pair in zip(source, free, strict=True) if (found := delay(*pair)) is not None]
    free_errors, guarded_errors = ([100 * e for track in found for e in errors(track)] for found in (free, guarded))
    return Row(
        name,
        seed,
        percent(source),
        percent(free),
        percent(guarded),
        (sum(len(t.alarms) for t in free), sum(len(t.alarms) for t in guarded)),
        options.clients * len(stream),
        delays,
        (free_errors, guarded_errors),
    )


def summarise(rows: list[Row]) -> str:
    """Return the lines that stand beside the bars."""
    worst = min(rows, key=lambda row: row.guarded - row.source)
    delays = [late for row in rows for late in row.delays]
    helped = [row for row in rows if row.free >= row.source]
    return "\n".join(
        (
            f"worst with guard: {worst.guarded - worst.source:+.1f} points ({worst.adapter}, seed {worst.seed})",
            f"drops: {len(delays)}, without an alarm {delays.count(-1)}, longest delay {max([0, *delays])}",
            f"alarms where adapting helps: {sum(row.alarms[1] for row in helped)} in"
            f" {sum(row.batches for row in helped)} batches",
            f"median error of the estimate: {np.median([e for row in rows for e in row.errors[1]]):.1f} points",
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("protocol", choices=PROTOCOLS)
    parser.add_argument("--model", default="resnet8")
    parser.add_argument("--adapters", default="tent,roid")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--slots", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    everyone = [name for name, cls in adapters.classes().items() if cls.adapts and not cls.learns and name != "memo"]
    names = everyone if options.adapters == "all" else options.adapters.split(",")
    jobs = [(name, int(seed)) for name in names for seed in options.seeds.split(",")]
    print("| adapter | seed | source | no guard | guard | alarms | batches | delay | error |")
    print("|:--|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    rows = []
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        walk_all = pool.imap if options.processes > 1 else map
        for row in walk_all(partial(measure, options), jobs):
            print(row, flush=True)
            rows += [row] if isinstance(row, Row) else []
    if rows:
        print(summarise(rows))


if __name__ == "__main__":
    main()
