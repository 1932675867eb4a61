"""What a server is worth to devices that never wait: a fleet of real processes on `roam`, and the same devices alone.

Run as `python benchmarks/roaming_fleet.py OUT`; `--dataset shapes-c` needs no download. Both see the same images in the
same order, and only images that both have predicted are counted. A fleet ends after its rounds, or with its data.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedctta.errors import UserError
from fedctta.fleet.device.start import Settings, run_device
from fedctta.fleet.processes.launch import Tryout, up
from fedctta.fleet.server.status_table import read_status
from fedctta.fleet.simulation.simulated import open_stream, parse_stream
from fedctta.models import model_for

DEVICES, FIRST = 4, 10


def read_right(path: Path) -> NDArray[np.bool_]:
    """Return which images[T] were predicted right."""
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return np.array([row["class"] == row["label"] for row in rows])


def describe_stays(words: str, batch: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return how many images[T] of its stay a client has seen before each one, and whether it is its first there."""
    experiment, client = parse_stream(words, batch)
    domain = np.repeat(open_stream(experiment).domain[:, client], batch)
    starts = np.flatnonzero(np.r_[True, domain[1:] != domain[:-1]])
    lengths = np.diff(np.r_[starts, len(domain)])
    new = np.isin(starts, [starts[domain[starts] == k][0] for k in np.unique(domain)])
    return np.arange(len(domain)) - np.repeat(starts, lengths), np.repeat(new, lengths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dataset", default="cifar10-c")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--slots", type=int, default=80)
    parser.add_argument("--pace", type=float, default=0.4)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    run: dict[str, Any] = {"dataset": given.dataset, "stream": "roam", "slots": given.slots, "seed": given.seed}
    tryout = Tryout(given.out / "fleet", DEVICES, given.rounds, run, pace=given.pace)
    try:
        up(tryout, lambda supervisor, status: None)
    except UserError as error:  # the data ended before the rounds
        print(error)
    status = read_status(given.out / "fleet" / "server")
    right: dict[str, list[NDArray[np.bool_]]] = {"alone": [], "fleet": []}
    since, new = [], []
    for k in range(DEVICES):
        words = ",".join(f"{key}={value}" for key, value in {**run, "clients": DEVICES, "client": k}.items())
        name = f"device-{k}"
        data, state = f"stream:{words}", given.out / "alone" / name
        run_device(Settings(model_for(given.dataset, "auto"), data, state, name=name, compute="cpu"))
        both = [read_right(given.out / where / name / "predictions.jsonl") for where in ("alone", "fleet/devices")]
        count = min(map(len, both))
        images, fresh = (rows[:count] for rows in describe_stays(words, 10))
        since.append(images)
        new.append(fresh)
        for where, found in zip(right, both, strict=True):
            right[where].append(found[:count])
    images, first_stay = np.concatenate(since), np.concatenate(new)
    print(
        f"{len(images)} images, {(images == 0).sum()} stays;"
        f" {status['bytes_up'] / status['round'] / DEVICES:.0f} bytes up"
    )
    for where, found in right.items():
        hits = np.concatenate(found)
        for part, chosen in (("all stays", images >= 0), ("first stays", first_stay), ("later stays", ~first_stay)):
            first = hits[chosen & (images < FIRST)]
            print(f"{where}, {part}: all {100 * hits[chosen].mean():.2f}, first {FIRST} {100 * first.mean():.2f}")


if __name__ == "__main__":
    main()
