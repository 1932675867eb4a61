"""Which lifting is fastest on a CPU: measured once for a machine, a model and a method, and remembered.

How many clients should pass through a model at once depends on caches, threads and on what clients own: a loop, a few
clients or many clients may be fastest. A long run measures it; a short one takes the usual choice of `clients`. So
does a run on a GPU: a trial there would measure the launch of kernels, for which a captured round does not wait.
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
from fedctta.core.clients import Client, InChunks, Lifter, by_loop, choose_lift, stack
from fedctta.core.network import Network
from fedctta.data.cache import cache_dir
from fedctta.errors import UserError
from fedctta.files import whole
from fedctta.machine import hardware

LONG = 50_000  # images of a run from which on measuring pays
SIZES = (50, 100, 200, 500)  # images at once that are tried
MOST = 40  # clients in a trial
REPEATS, SECONDS = 2, 5.0  # of a trial, and after which no further trial begins
FILE = "liftings.json"


def fastest_lift(
    adapter: Adapter,
    network: Network,
    clients: int,
    batch: int,
    shape: tuple[int, ...],
    images: int,
) -> Lifter:
    """Return the fastest lifting for a run of `images` images, of those worth trying; ties go to the first."""
    if images < LONG or adapter.source_images:
        return choose_lift("auto", network, adapter.init(network), batch)
    tried, shown = candidates(clients, batch), min(clients, MOST)
    key = _key(adapter, network, shown, batch, shape)
    choice = _remembered().get(key, "")
    if choice not in tried:
        choice = _measure(tried, adapter, network, shown, batch, shape)
        _remember({**_remembered(), key: choice})  # read again: other runs may have measured theirs meanwhile
    return tried[choice]


def candidates(clients: int, batch: int) -> dict[str, Lifter]:
    """Return liftings by name: vmap over several different numbers of clients, and a loop."""
    counts = sorted({min(clients, max(1, size // batch)) for size in SIZES})
    return {f"{count} at once": InChunks(count) for count in counts} | {"loop": by_loop}


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
            seconds[name] = min(_time(work, clock) for _ in range(REPEATS))
    return min(seconds, key=seconds.__getitem__)


def _time(work: Callable[[], Any], clock: Callable[[], float]) -> float:
    began = clock()
    work()
    return clock() - began


def _key(adapter: Adapter, network: Network, clients: int, batch: int, shape: tuple[int, ...]) -> str:
    tensors = sorted((name, tuple(tensor.shape)) for name, tensor in network.state.items())
    model = hashlib.sha256(repr((tensors, network.bf16)).encode()).hexdigest()[:8]
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
    """Store the choices; if they cannot be written, they are measured again next time."""
    try:
        with whole(cache_dir() / FILE) as part:
            part.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    except (OSError, UserError):
        return
