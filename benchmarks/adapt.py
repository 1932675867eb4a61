"""What adapting costs, as a multiple of plain inference with the same module.

    python benchmarks/adapt.py [--side 96] [--batch 64] [--turns 10] [--device cpu]

A ResNet-18 (of the kind for ImageNet, random weights) predicts the same batch plainly, and adapted in several ways, as
a user would: with the guard, whose checks run on one of 10 batches. The ways take turns. A ratio is the time of a way
by that of plain inference in the same turn: its median over the turns, which is that of a batch without a check, and
its mean, with the share of the checks. Times are CPU seconds of one thread, on which other processes have little
influence; on a GPU they are seconds. The first batches, which are all checked, are small and not counted. Bars: 1.3
where statistics are refreshed in the same pass, 2.1 for two passes, 3.2 for Tent; a way above its bar is marked, and
the exit code is 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter, process_time

import torch
from torch import Tensor, nn

import fedctta
from fedctta.health.guard import FIRST


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        shrink = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
        self.shortcut = nn.Sequential(*(shrink if stride > 1 else ()))

    def forward(self, x: Tensor) -> Tensor:
        """Return the features after the block."""
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


def resnet18(classes: int = 1000) -> nn.Module:
    """Return a ResNet-18 with random weights."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    blocks = [Block(*width) for width in (*widths, (512, 512, 1))]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes)).eval()


WAYS: dict[str, tuple[float, tuple[str, dict[str, object]]]] = {
    "bn, one pass": (1.3, ("bn", {})),
    "bn, two passes": (2.1, ("bn", {"one_pass": False})),
    "tent": (3.2, ("tent", {})),
}


def seconds(call: Callable[[], object], device: str) -> float:
    """Return how long a call takes."""
    if device == "cpu":
        began = process_time()
        call()
        return process_time() - began
    torch.cuda.synchronize()
    began = perf_counter()
    call()
    torch.cuda.synchronize()
    return perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=96)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module = resnet18().to(options.device)
    x = torch.rand(options.batch, 3, options.side, options.side, device=options.device)

    def plain() -> None:
        with torch.no_grad():
            module(x)

    models = {way: fedctta.adapt(module, name, **words) for way, (_, (name, words)) in WAYS.items()}
    calls: dict[str, Callable[[], object]] = {way: lambda model=model: model(x) for way, model in models.items()}
    for model in models.values():
        for _ in range(FIRST):
            model(x[:8])
    plain()
    ways = (("plain", plain), *calls.items())
    turns = [{way: seconds(call, options.device) for way, call in ways} for _ in range(options.turns)]
    print(f"plain inference: {median(turn['plain'] for turn in turns):.3f} s a batch\n")
    print("| way | median of batches | with checks | bar |\n|:--|--:|--:|--:|")
    late = False
    for way, (bar, _) in WAYS.items():
        ratios = [turn[way] / turn["plain"] for turn in turns]
        checked = sum(ratios) / len(ratios)
        late |= checked > bar
        print(f"| {way} | {median(ratios):.2f} | {checked:.2f}{' (above the bar)' if checked > bar else ''} | {bar} |")
    sys.exit(int(late))


if __name__ == "__main__":
    main()
