"""The same task on this package, Flower's simulation engine, pfl-research, and as PFLlib does it: one table.

    python benchmarks/peers.py [--clients 20 200] [--out docs/results/peers.md] [--flower PYTHON] [--pfl PYTHON]

The task: clients adapt ResNet-8 to the same batches of CIFAR-10-C (TTA-bn: the statistics of the batch; Tent: one step
of Adam on scales and shifts), the server averages what they have changed, and all predict the same batches with the
average. Every peer plays in a process of its own, with as many threads or actors as `--cores`; peers take turns, and
the table shows the median round of all turns. Clients of the three peers are model objects changed by torch's own
tools (`fedctta.bench.plain_clients`); only ours are lifted. A peer that is not installed is left out, with a line that
says how to install it; `--flower` and `--pfl` name a Python that has it, if that is another one. The exit code is 1 if
an accuracy differs from ours by more than 0.1 points.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from peer_ways.flower import play_flower
from peer_ways.pfl import play_pfl
from peer_ways.plain import play_fedctta, play_pfllib
from peer_ways.task import METHODS, Data, Task, Tick

from fedctta.bench.measure import CAPTURE
from fedctta.files import whole
from fedctta.machine import choose_device, hardware

TITLES = {
    "fedctta": "fedctta",
    "pfllib": "loop of deep copies (PFLlib's way)",
    "pfl": "pfl-research",
    "flower": "Flower",
}
NEEDS = {"pfl": ("pfl", "pip install pfl"), "flower": ("ray", "pip install 'fedctta[flower-simulation]'")}
NEAR = 0.1  # percentage points between accuracies
OURS = "fedctta"
WARM = {"cpu": 2, "cuda": CAPTURE + 2}  # rounds that are not counted: on a GPU ours are captured in the first ones
COUNTED = 3  # at least

PLAY: dict[str, Callable[[Task, Data, Tick], float]] = {
    "fedctta": play_fedctta,
    "pfllib": play_pfllib,
    "pfl": play_pfl,
    "flower": play_flower,
}


def play(peer: str, task: Task) -> None:
    """Play the task on one peer and print what was measured as one line of JSON."""
    if peer in NEEDS and find_spec(NEEDS[peer][0]) is None:
        print(json.dumps({"missing": f"{peer} is not installed: {NEEDS[peer][1]}"}))
        return
    torch.set_num_threads(task.cores)
    data, marks = Data(task), []
    began = perf_counter()
    accuracy = PLAY[peer](task, data, lambda: marks.append(perf_counter()))
    warm = WARM[task.device]
    seconds = [late - early for early, late in pairwise(marks)][warm - 1 :]
    if peer in ("pfl", "flower"):
        seconds = seconds[: data.rounds - warm]  # the last iteration only predicts
    print(json.dumps({"seconds": seconds, "accuracy": accuracy, "start": marks[0] - began}))


def ask(python: str, peer: str, task: Task) -> dict[str, Any]:
    """Let another process play, and return what it measured."""
    command = [python, __file__, "--play", peer, json.dumps(task)]
    env = {**os.environ, "OMP_NUM_THREADS": str(task.cores)}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        return {"missing": f"{peer} failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}"}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--play", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 200])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--peers", nargs="+", default=list(PLAY), choices=list(PLAY))
    rounds = "at least 5, on a GPU 10; on a CPU, with 200 clients or more, half of them"
    parser.add_argument("--rounds", type=int, default=10, help=rounds)
    parser.add_argument("--turns", type=int, default=2, help="how often every peer plays")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--cores", type=int, default=1, help="threads of a process, and of Flower the cores")
    parser.add_argument("--flower", default=sys.executable, help="a Python that has flwr and ray")
    parser.add_argument("--pfl", default=sys.executable, help="a Python that has pfl")
    parser.add_argument("--out", type=Path, help="write the page here")
    options = parser.parse_args()
    if options.play:
        play(options.play[0], Task(*json.loads(options.play[1])))
        return
    peers = list(dict.fromkeys([OURS, *options.peers]))
    pythons = {"flower": options.flower, "pfl": options.pfl}
    lines, far, missing = [], [], {}
    for method in options.methods:
        for clients in options.clients:
            half = options.device == "cpu" and clients >= 200
            count = max(WARM[options.device] + COUNTED, options.rounds // 2 if half else options.rounds)
            task = Task(method, clients, count, options.device, options.cores)
            found: dict[str, list[dict[str, Any]]] = {peer: [] for peer in peers}
            for _ in range(options.turns):
                for peer in peers:
                    if peer not in missing:
                        one = ask(pythons.get(peer, sys.executable), peer, task)
                        if "missing" in one:
                            missing[peer] = one["missing"]
                            print(f"{one['missing']}; left out", flush=True)
                        else:
                            found[peer].append(one)
            if not found[OURS]:
                sys.exit(missing[OURS])
            mine = median(s for one in found[OURS] for s in one["seconds"])
            for peer, ones in found.items():
                if ones:
                    spent = median(s for one in ones for s in one["seconds"])
                    apart = ones[0]["accuracy"] - found[OURS][0]["accuracy"]
                    far += [f"{peer}, {method}, {clients} clients: {apart:+.2f} points"] if abs(apart) > NEAR else []
                    start = median(one["start"] for one in ones)
                    cells = (method, f"{clients}", TITLES[peer], show_ms(spent), f"{spent / mine:.2f}")
                    lines.append("| " + " | ".join((*cells, f"{ones[0]['accuracy']:.2f}", f"{start:.1f}")) + " |")
                    print(lines[-1], flush=True)
            if options.out is not None:  # after every setting: the next one may take long
                with whole(options.out) as part:
                    part.write_text(page(lines, missing, options), encoding="utf-8")
    if far:
        sys.exit(f"accuracies differ by more than {NEAR} points: {'; '.join(far)}")


def show_ms(seconds: float) -> str:
    """Show milliseconds, those below 10 with two decimals."""
    return f"{1000 * seconds:,.0f}" if seconds >= 0.01 else f"{1000 * seconds:.2f}"


def page(lines: list[str], missing: dict[str, str], options: argparse.Namespace) -> str:
    """Return the page: the table, and what was fair and what was not."""
    words = [
        f"--clients {' '.join(map(str, options.clients))}",
        f"--rounds {options.rounds}",
        f"--turns {options.turns}",
    ]
    words += [f"--device {options.device}", f"--cores {options.cores}"]
    words += [f"--methods {' '.join(options.methods)}"] if options.methods != list(METHODS) else []
    words += [f"--peers {' '.join(options.peers)}"] if options.peers != list(PLAY) else []
    where = hardware(choose_device(options.device)) if options.device == "cuda" else f"{options.cores} core(s) of a CPU"
    precision = " Convolutions compute in tf32, torch's default." if options.device == "cuda" else ""
    load = f"load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores at the end"
    return f"""# The same task on other frameworks

Command: `python benchmarks/peers.py {" ".join(words)} --out docs/results/peers.md`,
on {where}, torch {torch.__version__}, {load}. ResNet-8 on
CIFAR-10-C, batches of 10; TTA-bn with FedAvg of the statistics, and Tent with FedAvg of scales and shifts.{precision}
Milliseconds are the median round over {options.turns} turn(s), in which the peers play one after another; *times ours*
is what to look at. *Start* is from the data in memory to the end of the first round. `--flower` and `--pfl` name the
Python of an environment that has that peer.

| method | clients | peer | ms per round | times ours | accuracy (%) | start (s) |
| :-- | --: | :-- | --: | --: | --: | --: |
{chr(10).join(lines)}
{"".join(f"{chr(10)}{reason}; it is left out.{chr(10)}" for reason in missing.values())}
## What is fair, and what is not

- All peers see the same images in the same order, start from the same weights and predict the same batches with the
  averaged model; accuracies agree within {NEAR} points. Their images are in memory; ours are read round by round.
- The clients of the peers are model objects changed by torch's own tools, the same code for all three. What differs
  between them is how the framework brings models, batches and averages together.
- *PFLlib's way* is our own loop after its idea (a deep copy of the model per client, sums over them), not its code:
  PFLlib trains classifiers with labels and has no test-time adaptation. It reads and writes nothing else.
- *pfl-research* and *Flower* fuse the prediction of one round with the adaptation of the next, so that a client is
  visited once per round; with two visits they would be slower. pfl-research has one model per process, and every user
  an optimiser on it, which costs it nothing. It could run once per core (Horovod); here it has `--cores` threads.
- *Flower* sends every client a message through its simulation engine (ray), one actor per core; actors keep the data. A
  message of Flower is made for real networks, and a simulation pays for serialising it.
- *fedctta* stacks all clients and passes their images through the shared convolutions at once. It also records
  calibration, entropy and bytes for every round, which the peers do not.
"""


if __name__ == "__main__":
    main()
