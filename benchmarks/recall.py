"""What recall costs a device: time per batch, the size of its book and of an exchange.

    python benchmarks/recall.py [--turns 300] [--walk 1500]

A ResNet-8 (random weights) predicts batches of 10 images of 32 x 32, plainly and as `fedctta.adapt(module, "recall",
guard="off", check=0)`, in turns, with one thread. A ratio is the time with recall by that of plain inference in one
turn; times are CPU seconds. *In a known domain*: the median over batches without a review. *Roaming*: the mean over a
walk through the 15 corruptions of shapes-c with stays of 20 to 1000 images, reviews included. Bars: 1.25, a book of 32
domains in 3 MB, 25 KB up after a stay in two domains.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import process_time

import torch
from torch import Tensor

import fedctta
from fedctta.books.rows import read_scale
from fedctta.core.network import Network
from fedctta.data.corrupted import load_domains
from fedctta.models.resnet import resnet8
from fedctta.streams.roam import Roam

BATCH, COST, BOOK_MB, UP_KB = 10, 1.25, 3.0, 25.0


def judge(what: str, value: float, bar: float, unit: str) -> bool:
    """Print a figure beside its bar, and say whether it is above."""
    print(f"| {what} | {value:.2f} {unit} | {bar} {unit}{' (above the bar)' if value > bar else ''} |")
    return value > bar


def measure_device(turns: int, walk: int) -> bool:
    """Print what a device pays."""
    torch.manual_seed(0)
    module = resnet8().eval()
    model = fedctta.adapt(module, "recall", guard="off", check=0)
    domains = load_domains("shapes-c")
    source = {name: torch.tensor(domains.images[name][:1000]).movedim(-1, 1) / 255 for name in domains.names}
    names = sorted(source)
    plan = Roam().set_up(BATCH, 0).plan(1, tuple(names), -(-walk // len(names)))[:walk, 0]
    steady = draw(source[names[0]], 0)
    for t in range(100):
        model(draw(source[names[0]], t))
    known = [turn(module, model, steady) for _ in range(turns)]
    model.reset()
    roaming = [turn(module, model, draw(source[names[k]], t)) for t, k in enumerate(plan)]
    print(f"plain inference: {1000 * median(plain for plain, _ in known):.2f} ms a batch\n")
    print("| | measured | bar |\n|:--|--:|--:|")
    late = judge("in a known domain", median(cost / plain for plain, cost in known), COST, "x")
    total = sum(cost for _, cost in roaming) / sum(plain for plain, _ in roaming)
    late |= judge(f"roaming, {walk} batches with reviews", total, COST, "x")
    half = roaming[walk // 2 :]
    late |= judge("the same, second half", sum(c for _, c in half) / sum(p for p, _ in half), COST, "x")
    late |= judge("the same, median", median(cost / plain for plain, cost in roaming), COST, "x")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "book"
        model.save(path)
        late |= judge("a book of 32 domains, saved", path.stat().st_size / 1e6, BOOK_MB, "MB")
    width = read_scale(Network(module)).layout.width
    return late | judge("an exchange after a stay in two domains", 2 * (4 * width + 16) / 1e3, UP_KB, "KB up")


def turn(module: torch.nn.Module, model: torch.nn.Module, x: Tensor) -> tuple[float, float]:
    """Return the seconds of plain inference and of recall."""
    began = process_time()
    with torch.no_grad():
        module(x)
    between = process_time()
    model(x)
    return between - began, process_time() - between


def draw(images: Tensor, t: int) -> Tensor:
    """Return ten images, others for every t."""
    return images[torch.arange(BATCH * t, BATCH * (t + 1)) % len(images)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--walk", type=int, default=1500)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.exit(int(measure_device(options.turns, options.walk)))


if __name__ == "__main__":
    main()
