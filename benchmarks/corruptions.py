"""Seconds to corrupt many images, against one image at a time: python benchmarks/corruptions.py --count 10000."""

from __future__ import annotations

import argparse
import importlib.util
import resource
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np
from rich.console import Console
from rich.table import Table

from fedctta.data.corruptions import BENCHMARK, EXTRA, NAMES, corrupt
from fedctta.data.corruptions.textures import stand_in


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="images for the fast way")
    parser.add_argument("--sample", type=int, default=50, help="images for the plain way")
    parser.add_argument("--size", type=int, default=32, help="pixels a side (a power of two)")
    parser.add_argument("--severity", type=int, default=5)
    choice = parser.parse_args()
    images = waves(choice.count, choice.size)
    textures = stand_in().images
    plain = load_reference()
    corrupt(images[:1], "elastic_transform", choice.severity)  # starts torch, whose first call is slow

    table = Table("corruption", "seconds", "images/s", "images/s, one by one", "times faster")
    total = 0.0
    for name in NAMES:
        start = time.perf_counter()
        corrupt(images, name, choice.severity, textures=textures)
        seconds = time.perf_counter() - start
        start = time.perf_counter()
        rng = np.random.default_rng(0)
        for image in images[: choice.sample]:
            plain.corrupted(image, name, choice.severity, rng, textures)
        slow = min(choice.sample, choice.count) / (time.perf_counter() - start)
        rate = choice.count / seconds
        total += seconds if name in BENCHMARK else 0
        note = " (extra)" if name in EXTRA else ""
        table.add_row(name + note, f"{seconds:.2f}", f"{rate:,.0f}", f"{slow:,.0f}", f"{rate / slow:.1f}")
    table.add_section()
    table.add_row(f"the {len(BENCHMARK)} of the benchmark", f"{total:.2f}", "", "", "")
    console = Console()
    console.print(table)
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    console.print(f"{choice.count} images, severity {choice.severity}, peak memory {peak / 1e9:.2f} GB")


def waves(count: int, size: int) -> np.ndarray:
    """Smooth colour waves with some grain, cheap to make in any number."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:size, :size].astype(np.float32) / size
    out = np.empty((count, size, size, 3), np.uint8)
    for image in out:
        fy, fx = rng.uniform(-15, 15, 2)
        wave = np.sin(fy * y + fx * x)[..., None] * rng.uniform(-80, 80, 3)
        image[:] = np.clip(128 + wave + rng.normal(0, 8, (size, size, 3)), 0, 255)
    return out


def load_reference() -> ModuleType:
    """Load the tests' plain implementation."""
    path = Path(__file__).parents[1] / "tests" / "data" / "corruptions" / "reference.py"
    spec = importlib.util.spec_from_file_location("reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
