"""CPU seconds and peak memory of commands that compute nothing, and of a tiny run, beside those of `import torch`.

    python benchmarks/start.py [--repeat 5]

A figure is the smallest of the repeats: what else runs on the machine can only add to it. `--help` and `methods` should
take at most 0.7 s and 80 MB: one that takes more is marked, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TINY = ("run", "dataset=shapes-c", "clients=4", "slots=1", "niid.clusters=4", "-q")  # two runs of 15 rounds
COMMANDS = (
    ("--help",),
    ("run", "--help"),
    ("methods",),
    ("keys",),
    ("keys", "fedctta.temperature"),
    ("data",),
    ("fleet", "status", "."),
    TINY,
    (*TINY, "--no-report"),
)
BARRED = (("--help",), ("methods",))
SECONDS, MEGABYTES = 0.7, 80.0


def measure(command: list[str], folder: Path) -> tuple[float, float]:
    """Return the CPU seconds (user and system) and the peak memory in MB of a command that must succeed."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed with exit code {process.returncode}")
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return used.ru_utime + used.ru_stime, used.ru_maxrss / unit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    python = sys.executable
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "status.json").write_text('{"doing": "running", "round": 3, "rounds": 9}')

        def best(command: list[str]) -> tuple[float, float]:
            found = [measure(command, folder) for _ in range(options.repeat)]
            return min(seconds for seconds, _ in found), min(megabytes for _, megabytes in found)

        heavy = best([python, "-c", "import torch"])
        print("| command | CPU s | MB | of `import torch`: CPU | memory |\n|---|---|---|---|---|")
        print(f"| `import torch` | {heavy[0]:.2f} | {heavy[1]:.0f} | 1.00 | 1.00 |")
        late = []
        for words in COMMANDS:
            seconds, megabytes = best([python, "-m", "fedctta", *words])
            passed = words not in BARRED or (seconds <= SECONDS and megabytes <= MEGABYTES)
            late += [] if passed else [" ".join(words)]
            shares = f"{seconds / heavy[0]:.2f} | {megabytes / heavy[1]:.2f}"
            mark = "" if passed else " **over the bar**"
            print(f"| `fedctta {' '.join(words)}` | {seconds:.2f} | {megabytes:.0f} | {shares} |{mark}")
    if late:
        sys.exit(f"over {SECONDS} s or {MEGABYTES:.0f} MB: {', '.join(late)}")


if __name__ == "__main__":
    main()
