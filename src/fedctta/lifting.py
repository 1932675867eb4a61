"""Which lifting is fastest here: measured once for a machine, a model and a method, and remembered.

How many clients should go through a model at once depends on caches, threads and on what clients own: on a CPU a loop,
a few clients or many may win. A long run pays for finding out; a short one takes the usual choice of `clients`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any

import torch

from fedctta.adapters import Adapter
from fedctta.clients import Client, Lifter, by_loop, choose_lift, in_chunks, stack
from fedctta.data.cache import cache_dir
from fedctta.errors import UserError
from fedctta.files import whole
from fedctta.machine import hardware
from fedctta.network import Network

LONG = 50_000  # images of a run from which on measuring pays
CPU_SIZES, CUDA_SIZES = (50, 100, 200, 500), (1_000, 4_000)  # images at once that are tried
MOST_ON_CPU = 40  # clients in a trial; on a GPU as many as go through at once in any, or trials would be the same
REPEATS, SECONDS = 2, 5.0  # of a trial, and after which no further trial begins
FILE = "liftings.json"


def fastest_lift(
    adapter: Adapter,
    network: Network,
    clients: int,
    batch: int,
    shape: tuple[int, ...],
    images: int,
    fit: int | None = None,
) -> Lifter:
    """Return the fastest lifting for a run of so many images, of those worth trying; ties go to the usual one.

    No more clients are lifted at once than fit.
    """
    usual = choose_lift("auto", network, adapter.init(network), batch, fit)
    clients = clients if fit is None else min(clients, fit)
    tried = candidates(network.device, clients, batch)
    if images < LONG or adapter.source_images or len(tried) < 2:
        return usual
    most = CUDA_SIZES[-1] // batch if network.device.type == "cuda" else MOST_ON_CPU
    shown = min(clients, max(1, most))
    key = _key(adapter, network, shown, batch, shape)
    choice = _remembered().get(key, "")
    if choice not in tried:
        choice = _measure(tried, adapter, network, shown, batch, shape)
        _remember({**_remembered(), key: choice})  # read again: other runs may have measured theirs meanwhile
    return tried[choice]


def candidates(device: torch.device, clients: int, batch: int) -> dict[str, Lifter]:
    """Return liftings by name: vmap over some numbers of clients that differ, and on a CPU a loop."""
    sizes = CUDA_SIZES if device.type == "cuda" else CPU_SIZES
    counts = sorted({min(clients, max(1, size // batch)) for size in sizes})
    lifts = {f"{count} at once": in_chunks(count) for count in counts}
    return lifts if device.type == "cuda" else {**lifts, "loop": by_loop}


def _measure(
    tried: Mapping[str, Lifter],
    adapter: Adapter,
    network: Network,
    clients: int,
    batch: int,
    shape: tuple[int, ...],
    clock: Callable[[], float] = perf_counter,
) -> str:
    """Return the name of the lifting that adapts and predicts fastest."""
    x = torch.rand(clients, batch, *shape, generator=torch.Generator().manual_seed(0)).to(network.device)
    everyone = stack(adapter.init(network), clients)

    def step(client: Client, batch_of_one: torch.Tensor) -> torch.Tensor:
        return adapter.predict(network, adapter.adapt(network, client, batch_of_one), batch_of_one)

    seconds: dict[str, float] = {}
    began = clock()
    with torch.no_grad():
        for name, lift in tried.items():
            if seconds and clock() - began > SECONDS:
                break
            work = partial(lift(step), everyone, x)
            seconds[name] = min(_time(work, network, clock) for _ in range(REPEATS))
    return min(seconds, key=seconds.__getitem__)


def _time(work: Callable[[], Any], network: Network, clock: Callable[[], float]) -> float:
    def now() -> float:
        if network.device.type == "cuda":
            torch.cuda.synchronize(network.device)
        return clock()

    began = now()
    work()
    return now() - began


def _key(adapter: Adapter, network: Network, clients: int, batch: int, shape: tuple[int, ...]) -> str:
    tensors = sorted((name, tuple(tensor.shape)) for name, tensor in network.state.items())
    model = hashlib.sha256(repr((tensors, network.short)).encode()).hexdigest()[:8]
    size = "x".join(map(str, shape))
    where = f"{hardware(network.device)}, torch {torch.__version__}"
    return f"{where}, {adapter}, model {model}, {clients} x {batch} x {size}"


def _remembered() -> dict[str, str]:
    """Return the choices made before; none if they cannot be read."""
    try:
        content = json.loads((cache_dir() / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _remember(known: Mapping[str, str]) -> None:
    """Keep the choices; where nothing can be written they are measured again next time."""
    try:
        with whole(cache_dir() / FILE) as part:
            part.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    except (OSError, UserError):
        return
