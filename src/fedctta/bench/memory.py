"""Whether a way fits into memory, told before it is tried: on a CPU the system would end the whole process."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from fedctta.adapters import adapters
from fedctta.aggregators import aggregators
from fedctta.aggregators.fedtsa import FedTSA
from fedctta.aggregators.fedtsa.noise import choose_epochs_at_once, count_numbers
from fedctta.bench.cells import Cell
from fedctta.bench.shapes import Shape, build_model
from fedctta.core.network import Network, Tensors
from fedctta.core.storage import choose_storage
from fedctta.keys import Stored

SHARE = 0.9  # of what is free may be taken
DRAWN, KEPT = 28, 40  # bytes for a number that is drawn (hashes take 8), and for a pair in training


class Bytes(NamedTuple):
    """Memory on the host and on the device (which may be the host as well)."""

    host: float
    device: float


class _Sizes(NamedTuple):
    model: int
    own: int
    private: int
    narrow: int  # of what a client owns, if its kernels and matrices are stored in bfloat16


def needed(cell: Cell, way: str, storage: Stored = "float32") -> Bytes:
    """Return roughly what all clients' tensors take at the worst moment; those of single passes come on top."""
    model, own, private, narrow = (cell.clients * size for size in _sizes(cell.shape, cell.adapter))
    stored = own if storage == "float32" else narrow
    mixed = 0 if aggregators.create(cell.aggregator).only_mixes else own  # if there is no room for more
    block = _block(cell.clients) if cell.aggregator == "fedtsa" else 0
    return {
        "a": Bytes(0, 0),
        "a'": Bytes(0, 0),
        "b": Bytes(0, stored + mixed + private + block),  # adapted in place
        "c": Bytes(0, model + own + private + block),
        "d": Bytes(model + 3 * own + private, private),  # model, upload, average, its copy; Adam's stays on the device
    }[way]


def shortage(cell: Cell, way: str, device: torch.device, storage: Stored = "float32") -> str | None:
    """Say what is missing, if anything."""
    need = needed(cell, way, storage)
    if device.type == "cpu":
        need = Bytes(need.host + need.device, 0)
    for place, wanted, free in (("memory", need.host, _free_host()), ("GPU memory", need.device, _free_device(device))):
        if free is not None and wanted > SHARE * free:
            return f"needs about {wanted / 1e9:.1f} GB of {place}, and {free / 1e9:.1f} are free"
    return None


def _block(clients: int) -> int:
    """Roughly what FedTSA's training takes: noise as it is drawn, and what two passes keep of all pairs."""
    slots, how = FedTSA().constants.window, FedTSA().training
    epoch = count_numbers(clients, slots, how)
    return (DRAWN * choose_epochs_at_once(epoch, how) + KEPT) * epoch


@lru_cache
def _sizes(shape: Shape, adapter: str) -> _Sizes:
    network = Network(build_model(shape), dense=shape.dense)
    client = adapters.create(adapter).init(network)
    storage = choose_storage(network, client)
    narrow = client if storage is None else storage.begin(client)
    return _Sizes(*(_bytes(tensors) for tensors in (network.state, client.own, client.private, narrow.own)))


def _bytes(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def _free_device(device: torch.device) -> float | None:
    return float(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else None


def _free_host() -> float | None:
    """What the system, and a container's limit, leave; None where that is not known."""
    found = []
    with suppress(OSError, ValueError, IndexError):
        found.append(1024.0 * int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]))
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        found.append(float(limit - used))
    return min(found, default=None)
