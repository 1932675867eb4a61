"""How long a device takes to adapt to and predict a batch, with and without a server that asks it every second.

A device works through random images as fast as it can. Blocks of batches alternate: in one half a second process asks
over the socket for an upload and sends a download, `--every` seconds apart, as a ClientApp does; in the other nobody
asks. Prints median and 99th percentile of both, and their ratios.

    python benchmarks/fleet_latency.py --batches 500 --aggregator fedtsa
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import torch

from fedctta.fleet.device.device import Device, Stop
from fedctta.fleet.device.device_state import DeviceState, StreamPosition
from fedctta.fleet.device.equipment import equip
from fedctta.fleet.device.handover import Handover, Snapshot
from fedctta.fleet.device.predictions import open_predictions
from fedctta.fleet.device.request_handler import RequestHandler
from fedctta.fleet.device.socket_server import SocketServer
from fedctta.fleet.device.sources import Batch
from fedctta.fleet.transport.framing import exchange
from fedctta.fleet.transport.wire import Parcel, pack, unpack
from fedctta.online.saved import identity


def ask_on(path: Path, aggregator: str, every: float, busy: Event, over: Event, told: str) -> None:
    """Ask for an upload and send it back as the next download, over and over while `busy` is set."""
    number, arrays, seconds = 0, {}, []
    note = {"ask": 1, "run": "bench", "aggregator": aggregator}
    while not over.is_set():
        if not busy.wait(0.05):
            continue
        began = time.perf_counter()
        reply = unpack(exchange(path, pack(Parcel("step", number, note, arrays)).tobytes(), 10), 1 << 30)
        seconds.append(time.perf_counter() - began)
        arrays = {name: a for name, a in reply.arrays.items() if name.startswith("own.")}
        number += 1
        time.sleep(max(0.0, every - (time.perf_counter() - began)))
    size = sum(a.nbytes for a in arrays.values())
    Path(told).write_text(json.dumps({"asked": number, "median_ms": 1000 * float(np.median(seconds)), "bytes": size}))


def memory_mb() -> float:
    """Resident memory of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet8")
    parser.add_argument("--weights", default="cifar10")
    parser.add_argument("--adapter", default="bn")
    parser.add_argument("--aggregator", default="fedavg")
    parser.add_argument("--batches", type=int, default=500, help="of each kind")
    parser.add_argument("--block", type=int, default=25)
    parser.add_argument("--every", type=float, default=1.0)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()

    found = equip(options.model, options.weights, options.adapter, 10, device=options.device)
    context = multiprocessing.get_context("spawn")
    busy, over = context.Event(), context.Event()
    with tempfile.TemporaryDirectory() as name, torch.no_grad():
        folder = Path(name)
        client = found.adapter.init(found.network)
        handover = Handover(Snapshot(client, None, 0))
        desk = RequestHandler("bench", found.network, found.adapter, handover, spare=found.spare)
        told = str(folder / "told.json")
        arguments = (folder / "s", options.aggregator, options.every, busy, over, told)
        asker = context.Process(target=ask_on, args=arguments)
        with open_predictions(folder / "p.jsonl") as out, SocketServer(folder / "s", desk.answer):
            keep = DeviceState(folder, identity(found.network, found.adapter))
            device = Device(found, client, StreamPosition(), out, keep, handover)
            asker.start()
            seconds = walk(device, options, busy)
            over.set()
            busy.set()
            asker.join()
            report(seconds, keep.seconds, json.loads(Path(told).read_text()))


def walk(device: Device, options: argparse.Namespace, busy: Event) -> dict[bool, list[float]]:
    """Time every batch, blocks with and without questions in turn; the first block warms up."""
    random, ids = np.random.default_rng(0), tuple(map(str, range(10)))
    images = random.integers(0, 256, (20, 10, 32, 32, 3), np.uint8)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    blocks = -(-options.batches // options.block)
    for block in range(-1, 2 * blocks):
        asked = block % 2 == 1
        (busy.set if asked else busy.clear)()
        for k in range(options.block):
            began = time.perf_counter()
            device.predict(Batch(images[k % 20], ids), Stop())
            if block >= 0:
                seconds[asked].append(time.perf_counter() - began)
    return seconds


def report(seconds: dict[bool, list[float]], saving: float, told: dict[str, float]) -> None:
    milliseconds = {asked: 1000 * np.array(values) for asked, values in seconds.items()}
    for label, statistic in (("median", np.median), ("99th percentile", lambda v: np.percentile(v, 99))):
        alone, asked = statistic(milliseconds[False]), statistic(milliseconds[True])
        print(f"{label:16} alone {alone:7.2f} ms   asked {asked:7.2f} ms   ratio {asked / alone:.3f}")
    total = sum(map(sum, seconds.values()))
    print(f"{len(seconds[False])} batches of each kind, {total:.1f} s; saving took {100 * saving / total:.2f} % of it")
    print(f"asked {told['asked']:.0f} times, {told['bytes'] / 1024:.1f} KB each way, median {told['median_ms']:.1f} ms")
    print(f"memory {memory_mb():.0f} MB resident")


if __name__ == "__main__":
    main()
