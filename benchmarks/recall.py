"""What recall costs a device and its server.

    python benchmarks/recall.py [--turns 300] [--walk 1500]         # a device: time per batch, book, exchange
    python benchmarks/recall.py server [--devices 100000]           # one server process, and every device exchanges

Device: a ResNet-8 (random weights) predicts batches of 10 images of 32 x 32, plainly and as `fedctta.adapt(module,
"recall", guard="off", check=0)`, in turns, with one thread. A ratio is the time with recall by that of plain inference
in the same turn; times are CPU seconds. *In a known domain*: the median over batches without a review. *Roaming*: the
mean over a walk through the 15 corruptions of shapes-c with stays of 20 to 1000 images, reviews included. Bars: 1.25,
a book of 32 domains in 3 MB, 25 KB up after a stay in two domains.

Server: every device sends the rows of two of 32 domains, under names of its own the first time, and receives a whole
book; then some exchange again, under the server's names. Bars: 1 ms of one core, memory that does not grow.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path
from statistics import mean, median
from time import process_time

import torch
from torch import Tensor

import fedctta
from fedctta.adapters.recall import Recall
from fedctta.books.rows import Layout, read_scale
from fedctta.books.store import Store
from fedctta.core.network import Network
from fedctta.data.corrupted import load_domains
from fedctta.machine import peak_memory_mb
from fedctta.models.resnet import resnet8
from fedctta.streams.roam import Roam

CPU = torch.device("cpu")
BATCH, COST, BOOK_MB, UP_KB, EXCHANGE_MS = 10, 1.25, 3.0, 25.0, 1.0


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


def measure_server(devices: int) -> bool:
    """Print what a server pays per exchange."""
    generator, chance = torch.Generator().manual_seed(0), random.Random(0)
    layout = Layout(sum(read_scale(Network(resnet8())).widths))
    store, domains = Store(layout), Recall().domains
    looks = 4 * torch.randn(domains, 10, generator=generator)
    truth = torch.randn(domains, 2 * layout.channels, generator=generator)
    noise = torch.randn(64, 2 * layout.channels, generator=generator)

    def rows(ks: list[int], images: float) -> Tensor:
        return torch.stack([row(k, images) for k in ks])

    def row(k: int, images: float) -> Tensor:
        count = torch.tensor([images])
        look = looks[k] + noise[chance.randrange(64), :10] / images**0.5
        moments = truth[k] + 0.1 * noise[chance.randrange(64)]
        sums = {"look": images * look, "square": images * (look.square() + 1), "moments": images * moments}
        return layout.row(look, images=count, measured=count, **sums)

    def exchange(device: int, names: Tensor, ks: list[int], time: int) -> tuple[float, float, float]:
        sent = rows(ks, float(chance.randrange(50, 500)))
        versions = torch.full((len(ks),), time)
        began = process_time()
        store.receive(device, names, versions, sent)
        received = process_time()
        store.hand_out(device, names)
        handed = process_time()
        store.hand_out_since(device, names, store.tick - 50)
        return received - began, handed - received, process_time() - handed

    first: list[tuple[float, float, float]] = []
    before = peak_memory_mb(CPU)
    for device in range(devices):
        ks = chance.sample(range(domains), 2)
        names = torch.tensor([1 + (device * domains + k) for k in ks])
        first.append(exchange(device, names, ks, 10 * (1 + device // 100)))
        if device == min(2000, devices // 2):
            before = peak_memory_mb(CPU)
    later = []
    home = {k: int(store._find_domain(row(k, 500.0))) for k in range(domains)}
    for _ in range(min(devices, 20_000)):
        ks = chance.sample(range(domains), 2)
        names = torch.stack([store.headings[home[k]] for k in ks])
        later.append(exchange(chance.randrange(devices), names, ks, store.time + 1))
    print(f"{devices} devices, {len(first) + len(later)} exchanges, {len(store._places)} devices with parts kept\n")
    print("| | measured | bar |\n|:--|--:|--:|")
    late = False
    for what, times in (("first exchange, new names", first), ("later exchange", later)):
        late |= judge(f"{what}: receive", 1000 * mean(t[0] for t in times), EXCHANGE_MS, "ms")
        late |= judge(f"{what}: receive and hand out", 1000 * mean(t[0] + t[1] for t in times), EXCHANGE_MS, "ms")
        print(f"| {what}: hand out what changed in 50 exchanges | {1000 * mean(t[2] for t in times):.2f} ms | |")
        print(f"| {what}: receive, median and worst | {1000 * median(t[0] for t in times):.2f} and"
              f" {1000 * max(t[0] for t in times):.0f} ms | |")  # fmt: skip
    print(f"| parts of devices | {store.nbytes / 1e6:.1f} MB | |")
    print(f"| more memory after the first 2,000 devices | {peak_memory_mb(CPU) - before:.0f} MB | |")
    print(
        f"| up and down | {2 * (4 * layout.width + 16) / 1e3:.1f} KB and {domains * 4 * layout.width / 1e3:.0f} KB | |"
    )
    return late


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="device", choices=["device", "server"])
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--walk", type=int, default=1500)
    parser.add_argument("--devices", type=int, default=100_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    late = measure_server(options.devices) if options.what == "server" else measure_device(options.turns, options.walk)
    sys.exit(int(late))


if __name__ == "__main__":
    main()
