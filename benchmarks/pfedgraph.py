"""What pFedGraph's quadratic programme costs: the projection of every client's row, and sorting the rows beside it.

    python benchmarks/pfedgraph.py [--repeats 21] [--threads 1]

Rows are p - d / (2 lambda) with d the negative cosines of random updates: of unrelated clients, and of clients in ten
groups. Milliseconds are medians over repeats interleaved with sorting, which a closed form would start with. With more
than one thread a busy machine counts double: they wait for each other in every pass.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from fedctta.aggregators.common.vectors import cosines
from fedctta.aggregators.pfedgraph import PFedGraph, project_to_simplex


def rows(clients: int, grouped: bool) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    updates = torch.randn(clients, 256, generator=generator)
    if grouped:
        updates = updates + 2 * torch.randn(10, 256, generator=generator).repeat(clients // 10, 1)
    return 1 / clients + cosines(updates @ updates.T) / (2 * PFedGraph.lam)


def milliseconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return 1000 * (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{'clients':>8} {'updates':10}{'project ms':>11}{'sort ms':>9}{'ratio':>7}")
    for clients in (20, 100, 1000):
        for grouped in (False, True):
            v, active = rows(clients, grouped), torch.ones(clients, dtype=torch.bool)
            times = [
                (milliseconds(lambda: project_to_simplex(v, active)), milliseconds(lambda: v.sort(-1)))  # noqa: B023
                for _ in range(options.repeats)
            ]
            ours, sort = (statistics.median(column) for column in zip(*times, strict=True))
            print(f"{clients:8} {'grouped' if grouped else 'unrelated':10}{ours:11.2f}{sort:9.2f}{ours / sort:7.2f}")


if __name__ == "__main__":
    main()
