"""What recall costs its server: one process that many devices exchange with, one after the other.

    python benchmarks/recall_server.py [--devices 100000] [--exchanges 2]

Devices live in 15 domains with looks and moments of their own, as rows of a ResNet-8 (2,786 numbers), and see 2,000
images of two domains between two exchanges. All see images at one pace, and both domains until the last moment: the
worst case, in which the server keeps every part. In its first exchange a device has names of its own and no book; from
then on it has the server's names and tells the editions it has. Times are CPU time of one thread, from the server's
question to its answer, without a network: check, keep, arrange, add up, answer. Devices' own work is not counted.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from time import process_time

import numpy as np
import torch
from torch import Tensor

from fedctta.books.library import Rules
from fedctta.books.rows import WEIGHTS, Layout
from fedctta.books.store import Letter, Store
from fedctta.core.appearance import NUMBERS

LAYOUT, DOMAINS, STAYS, PACE, BAR_MS = Layout(1344), 15, 2, 2000, 1.0
NAMES = 16  # a device's names, of which the domain is the remainder


class World:
    """Domains, and what devices see of them."""

    def __init__(self, devices: int) -> None:
        self.random = torch.Generator().manual_seed(0)
        self.look = 3 * self._normal(DOMAINS, NUMBERS)
        self.mean = 0.5 * self._normal(DOMAINS, LAYOUT.channels)
        self.var = 0.5 + torch.rand(DOMAINS, LAYOUT.channels, generator=self.random)
        self.doubt = torch.rand(DOMAINS, len(WEIGHTS), generator=self.random)
        self.name = np.full((devices, DOMAINS), -1, np.int64)  # what a device calls a domain; -1: it has no name for it
        self.changed = np.full((devices, DOMAINS), -1, np.int64)  # -1: the device itself has not been there
        self.held = np.full((devices, 32), -1, np.int64)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.random)

    def stay(self, device: int, time: int) -> None:
        """Let a device see images of two domains until a time."""
        for k in torch.randperm(DOMAINS, generator=self.random)[:STAYS].tolist():
            self.changed[device, k] = time
            if self.name[device, k] < 0:
                self.name[device, k] = device * NAMES + k + 1

    def draw(self, domains: list[int]) -> Tensor:
        """Return what a device may have seen of domains, in rows: means around the domain's."""
        count = len(domains)
        n = torch.randint(100, 250, (count, 1), generator=self.random).float()  # all domains: less than its time
        look = self.look[domains] + 0.1 * self._normal(count, NUMBERS)
        z = self.mean[domains] + 0.05 * self._normal(count, LAYOUT.channels)
        var = self.var[domains] * (1 + 0.1 * torch.rand(count, 1, generator=self.random))
        moments = torch.cat([z, var + z.square() - 1], 1)
        doubt = self.doubt[domains] * (1 + 0.1 * torch.rand(count, len(WEIGHTS), generator=self.random))
        sums = {"look": look, "square": look.square() + 1, "doubt": doubt, "moments": moments}
        rows = torch.zeros(count, LAYOUT.width)
        for name, means in sums.items():
            rows[:, LAYOUT.parts[name]] = n * means
        for name in ("images", "scored", "measured"):
            rows[:, LAYOUT.parts[name]] = n
        return rows


def count_bytes(*tensors: Tensor) -> int:
    """Return how many bytes tensors are when they travel."""
    return sum(tensor.nbytes for tensor in tensors)


def exchange(store: Store, world: World, device: int, time: int) -> tuple[float, int, int, int, int]:
    """Let a device exchange; return the server's CPU seconds, bytes up and down, rows up and down."""
    world.stay(device, time)
    began = process_time()
    needless = store.list_needless(device)
    asked = process_time() - began
    mine = np.flatnonzero(world.changed[device] >= 0)
    name, changed = torch.from_numpy(world.name[device, mine]), torch.from_numpy(world.changed[device, mine])
    known = (name[:, None] == needless["name"]) & (changed[:, None] <= needless["version"])
    which = (~known.any(1)).nonzero().squeeze(1)
    rows = world.draw([int(mine[k]) for k in which])
    held = torch.from_numpy(world.held[device][world.held[device] > 0])
    letter = Letter(device, time, name, changed, which, rows, held)
    began = process_time()
    answer = store.exchange(letter)
    seconds = asked + process_time() - began
    if answer is None:
        raise SystemExit(f"the server has refused device {device}")
    heading, place = answer.heading.numpy(), answer.place.numpy()
    for title in heading[heading != 0]:
        world.name[device, (title - 1) % NAMES] = title
    world.name[device, mine[place >= 0]] = heading[place[place >= 0]]
    world.held[device] = answer.edition.numpy()
    up = count_bytes(name, changed, which, rows, held) + 16
    down = count_bytes(*answer[:-1], *needless.values()) + 8
    return seconds, up, down, len(rows), len(answer.which)


def read_memory() -> float:
    """Return the resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> int:
    """Print the figures beside the bar; 1 if one is above it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=100_000)
    parser.add_argument("--exchanges", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    world = World(arguments.devices)
    empty = read_memory()
    store = Store(LAYOUT, Rules())
    above = False
    print("| exchange | median ms | mean | 99 % | most | KB up | KB down | rows up | rows down | resident MB |")
    print("|:--|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    print(f"| before | | | | | | | | | {empty:.0f} |")
    for turn in range(1, arguments.exchanges + 1):
        last = arguments.devices - 1  # of parts of the same time, the server prefers those of lower devices
        figures = np.array(
            [exchange(store, world, last - k, int(PACE * (3 + turn + k / last))) for k in range(arguments.devices)]
        )
        ms, (up, down, sent, new) = 1000 * figures[:, 0], figures[:, 1:].mean(0)
        times = f"{np.median(ms):.2f} | {ms.mean():.2f} | {np.percentile(ms, 99):.2f} | {ms.max():.0f}"
        sizes = f"{up / 1e3:.1f} | {down / 1e3:.1f} | {sent:.1f} | {new:.1f}"
        print(f"| {turn} | {times} | {sizes} | {read_memory():.0f} |", flush=True)
        above |= bool(ms.mean() > BAR_MS)
    shelf = store.shelf()
    kept = f"{len(shelf.name)} parts of {len(shelf.name.unique())} names, {count_bytes(shelf.rows) / 1e6:.1f} MB"
    print(f"\n{len(shelf.known)} devices known; {kept}")
    print(f"bar: {BAR_MS} ms an exchange, on average{' (above the bar)' if above else ''}")
    return int(above)


if __name__ == "__main__":
    sys.exit(main())
