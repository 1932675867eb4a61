"""What a round of a real fleet costs on one machine: seconds, CPU, bytes on the wire, memory of each process.

Starts SuperLink, SuperNodes, devices and the server as `fedctta fleet up` does, with TLS and node keys, plays some
rounds, and prints two tables. Bytes are those of parcels, each way, without what HTTP and TLS add. Memory and CPU are
those of a part and all it has started; a device's include the simulated stream it sees, so that one which reads image
files is measured beside them. A node's CPU per message is what it used between the first and the last round, polling
included, by the rounds between. Seconds depend on what else the machine does, CPU seconds hardly.

    python benchmarks/fleet_round.py --rounds 10
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from fedctta.fleet.processes.launch import Tryout, up
from fedctta.fleet.processes.process_specs import device
from fedctta.fleet.processes.supervisor import Supervisor
from fedctta.models.zoo import weights_path


class Observer:
    """Notes what each round took, and memory and CPU of every part twice a second."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.first = 0.0  # seconds to the end of the first round
        self.rounds: dict[int, dict[str, Any]] = {}
        self.memory: dict[str, list[float]] = defaultdict(list)
        self.cpu: dict[str, dict[int, float]] = defaultdict(dict)  # by part: CPU seconds when a round was first seen

    def watch(self, supervisor: Supervisor, status: dict[str, Any]) -> None:
        """Look once."""
        if now := int(status.get("round", 0)):
            self.first = self.first or time.monotonic() - self.began
            self.rounds.setdefault(now, status)
        for name, tended in supervisor.tended.items():
            self.memory[name].append(supervisor.memory(name) / 2**20)
            self.cpu[name].setdefault(now, cpu_seconds(tended.process.pid))

    def cpu_per_round(self, name: str) -> float:
        """Return the CPU seconds of a part per round, from the first to the last."""
        seen = {at: used for at, used in self.cpu[name].items() if at}
        return (seen[max(seen)] - seen[min(seen)]) / max(1, max(seen) - min(seen))


def cpu_seconds(group: int) -> float:
    """Return the CPU seconds of a process group, with those of children that have ended."""
    ticks = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                ticks += sum(int(number) for number in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet8")
    parser.add_argument("--weights", default="cifar10")
    parser.add_argument("--aggregator", default="fedctta")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--lockstep", action="store_true")
    options = parser.parse_args()

    weights = weights_path(options.model, options.weights)
    run = {"model": options.model, "weights": str(weights), "aggregator": options.aggregator, "bn.momentum": 0.3}
    observer = Observer()
    with tempfile.TemporaryDirectory() as folder:
        tryout = Tryout(Path(folder), options.devices, options.rounds, run, lockstep=options.lockstep)
        status = up(tryout, observer.watch)
        in_all = time.monotonic() - observer.began
        megabytes = reading_files(Path(folder), options, str(weights))
    report(observer, status, options, megabytes, in_all)


def reading_files(folder: Path, options: argparse.Namespace, weights: str) -> float:
    """Return the most MB a device takes that reads image files, and does not draw a simulated stream in its process."""
    images, random = folder / "images", np.random.default_rng(0)
    images.mkdir()
    for k in range(300):
        Image.fromarray(random.integers(0, 256, (32, 32, 3), np.uint8)).save(images / f"{k:03}.png")
    words = ["--model", options.model, "--weights", weights, "--data", f"folder:{images}", "--device", "cpu"]
    part = device("files", [*words, "--state", str(folder / "files"), "--socket", str(folder / "s"), "--quiet"])
    process, most = subprocess.Popen(part.command, env={**os.environ, **part.environment}), 0
    while process.poll() is None:  # not the kernel's count at the end, which begins with this process's own memory
        with suppress(OSError, IndexError):
            most = int(Path(f"/proc/{process.pid}/status").read_text().split("VmHWM:")[1].split()[0])
        time.sleep(0.02)
    assert process.returncode == 0
    return most / 1024


def report(
    observer: Observer, status: dict[str, Any], options: argparse.Namespace, megabytes: float, seconds_in_all: float
) -> None:
    """Print what was seen."""
    rounds = sorted(observer.rounds.items())
    seconds = [told["seconds_of_round"] for _, told in rounds]
    first, last = rounds[0][1], rounds[-1][1]
    between = max(1, last["round"] - first["round"])
    up_, down = ((last[key] - first[key]) / between / 1024 for key in ("bytes_up", "bytes_down"))

    how = "lock-step" if options.lockstep else "free-running"
    table = Table(title=f"A round of {options.devices} devices, {options.model} with {options.aggregator}, {how}")
    for column in ("", "median", "least", "most"):
        table.add_column(column, justify="right" if column else "left")
    numbers = (statistics.median(seconds), min(seconds), max(seconds))
    table.add_row("seconds per round", *(f"{number:.1f}" for number in numbers))
    table.add_row("seconds to the end of the first round", f"{observer.first:.1f}", "", "")
    table.add_row("seconds in all", f"{seconds_in_all:.1f}", "", "")
    table.add_row("KB up a round, all devices", f"{up_:.1f}", "", "")
    table.add_row("KB down a round, all devices", f"{down:.1f}", "", "")
    memory = Table(title="Memory, MB resident, and CPU")
    for column in ("part", "median", "most", "CPU s per round", "CPU s to round 1"):
        memory.add_column(column, justify="left" if column == "part" else "right")
    for name, seen in observer.memory.items():
        used = observer.cpu[name]
        costs = (f"{observer.cpu_per_round(name):.2f}", f"{used.get(1, used[max(used)]):.1f}")
        memory.add_row(name, f"{statistics.median(seen):.0f}", f"{max(seen):.0f}", *costs)
    memory.add_row("a device that reads files", "", f"{megabytes:.0f}", "", "")
    console = Console()
    console.print(table, memory)
    load = os.getloadavg()[0]
    console.print(f"{status['round']} rounds, {status['refused']} refused; load {load:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
