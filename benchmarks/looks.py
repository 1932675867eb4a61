"""How well a batch's look tells which of known domains it is of: the twelve numbers, without some, and the first layer.

    python benchmarks/looks.py [dataset=pacs model=efficientnet-lite0 size=128 weights=photo ...]

Half of up to 600 images per domain give its mean and variances; batches of the others go to the likeliest domain.
*First layer*: mean and logarithm of the variance of every channel that enters the first BatchNorm layer. *Light* and
*flat* are the last two of the twelve (`core.appearance`); the ten before them tell of power and of colours.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedctta.core.appearance import appearance
from fedctta.runs.build import choose_parts
from fedctta.runs.cache import Cache
from fedctta.runs.settings import expand, parse_words

SETS = (
    "dataset=cifar10-c",
    "dataset=pacs model=efficientnet-lite0 size=128 weights=photo",
    "dataset=office-caltech model=efficientnet-lite0 size=128 weights=amazon",
)
MOST, BATCHES, TOLERANCE = 600, 400, 0.01


class _Enough(Exception):
    """The first layer has been seen."""


def read_first_layer(module: nn.Module, x: Tensor) -> Tensor:
    """Return mean and log variance over pixels of every channel that enters the first BatchNorm layer, [B, 2 C]."""
    layer = next(each for each in module.modules() if isinstance(each, nn.BatchNorm2d))
    seen: list[Tensor] = []

    def stop(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0])
        raise _Enough

    handle = layer.register_forward_pre_hook(stop)
    try:
        module(x)
    except _Enough:
        pass
    finally:
        handle.remove()
    return torch.cat([seen[0].mean((2, 3)), seen[0].var((2, 3)).add(1e-6).log()], 1)


def describe(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return the numbers of every way to look at images x[B, 3, H, W]."""
    look = appearance(x)
    layer = torch.cat([read_first_layer(module, part) for part in x.split(50)])
    return {
        "first layer": layer,
        "ten": look[:, :10],
        "ten, light": look[:, :11],
        "ten, flat": look[:, [*range(10), 11]],
        "all twelve": look,
    }


def find_share(domains: Sequence[Tensor], batch: int) -> float:
    """Return the share of batches that go to their own domain."""
    chance = np.random.default_rng(0)
    known = min(300, min(map(len, domains)) // 2)
    mean = torch.stack([each[:known].mean(0) for each in domains])
    var = torch.stack([each[:known].var(0) for each in domains])
    var = var.maximum(0.05 * var.mean(0)).clamp_min(1e-7)
    error, right = 1 / batch + 1 / known + TOLERANCE, 0
    for k, each in enumerate(domains):
        for _ in range(BATCHES):
            look = each[torch.from_numpy(chance.choice(np.arange(known, len(each)), batch))].mean(0)
            misfit = ((look - mean).square() / var / error + var.log()).sum(1)
            right += int(misfit.argmin()) == k
    return right / BATCHES / len(domains)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="a data set and its model; without, CIFAR-10-C, PACS, Office-Caltech")
    given = parser.parse_args().words
    for words in [given] if given else [each.split() for each in SETS]:
        (experiment,) = expand(parse_words([*words, "adapter=none", "slots=2"]))
        parts = choose_parts(experiment, torch.device("cpu"), Cache())
        data, module, chance = parts.stream.data, parts.network.module, np.random.default_rng(0)
        looks: dict[str, list[Tensor]] = {}
        for name in data.names:
            images = data.images[name]
            chosen = np.sort(chance.choice(len(images), min(MOST, len(images)), replace=False))
            x = torch.from_numpy(images[chosen][chance.permutation(len(chosen))]).movedim(-1, 1).float() / 255
            with torch.no_grad():
                for way, numbers in describe(module, x).items():
                    looks.setdefault(way, []).append(numbers)
        print("\n" + " ".join(words) + f" ({len(data.names)} domains)")
        print(f"{'':18s}" + "".join(f"{f'batch {b}':>10s}" for b in (10, 5, 1)))
        for way, domains in looks.items():
            print(f"{way:18s}" + "".join(f"{find_share(domains, b):10.3f}" for b in (10, 5, 1)), flush=True)


if __name__ == "__main__":
    main()
