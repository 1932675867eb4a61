"""What a device starts with: the model, its method, the names of the classes, and images of the source."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fedctta.adapters import Adapter, adapters
from fedctta.core.network import Network
from fedctta.data.decode_file import decode_file
from fedctta.errors import UserError, unknown
from fedctta.fleet.device.sources import files_below
from fedctta.models import ARCHITECTURES, build
from fedctta.models.inputs import to_input
from fedctta.models.zoo import load_weights, weights_path
from fedctta.online.default_method import choose_default
from fedctta.runs.source_models import RANDOM, load_module

log = logging.getLogger("fedctta.fleet")

TRAINED_ON = ("cifar10", "cifar100", "shapes")
"""Data sets whose weights `--weights auto` looks for."""


@dataclass(frozen=True)
class Equipment:
    """A model's function, the adapter, what classes are called (nothing if that is not known), and a second model."""

    network: Network
    adapter: Adapter
    classes: tuple[str, ...]
    spare: Callable[[], Network]


def equip(
    model: str,
    weights: str,
    adapter: str | None,
    batch: int,
    *,
    parameters: Mapping[str, Any] | None = None,
    classes: str = "",
    dataset: str = "",
    device: torch.device | str = "cpu",
) -> Equipment:
    """Make everything from its name; without an adapter's, one that fits the model.

    `dataset`, if known, says which weights are meant by "auto".
    """
    method = adapters.create(adapter, parameters) if adapter else None
    path, trained_on = find_weights(model, weights, dataset)

    def load() -> Network:
        return Network(_module(model, path, weights), device)

    network = load()
    if method is None:
        name, why = choose_default(network)
        if why:
            log.warning("%s", why)
        method = adapters.create(name)
    method.check(network, batch)
    return Equipment(network, method, _class_names(classes, trained_on), load)


def find_weights(model: str, weights: str, dataset: str = "") -> tuple[Path | None, str]:
    """Return the file of weights and the data set they were trained on, as far as known."""
    if ":" not in model and model not in ARCHITECTURES:
        raise unknown("model", model, ARCHITECTURES)
    if Path(weights).suffix or Path(weights).name != weights:
        return Path(weights), ""
    if ":" in model:
        if weights not in ("auto", RANDOM):
            raise UserError(f"--weights {weights} is no file: give the path of a .safetensors file for {model}")
        return None, ""
    candidates = [weights] if weights != "auto" else [dataset] if dataset else list(TRAINED_ON)
    found = {name: path for name in candidates if (path := weights_path(model, name)) is not None}
    if len(found) > 1:
        raise UserError(f"{model} has weights for {' and '.join(found)}: say which with --weights")
    if not found:
        raise UserError(
            f"no weights of {model} for {' or '.join(candidates)}: make them with `fedctta pretrain`, or give --weights"
            " the path of a .safetensors file"
        )
    name, path = next(iter(found.items()))
    return path, name.removesuffix("-c").split("-")[0]


def _module(model: str, path: Path | None, weights: str) -> nn.Module:
    if ":" in model:
        return load_module("", model, weights, 0)
    if ARCHITECTURES[model].dense:
        raise UserError(f"model {model} predicts every pixel and a device writes one class an image: use another model")
    assert path is not None
    module = build(model, _count_classes(build(model), path))
    load_weights(module, path)
    return module


def _count_classes(module: nn.Module, path: Path) -> int:
    """Read how many classes a file of weights is for: the rows of the model's last linear layer."""
    last = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)][-1]
    try:
        with safe_open(path, framework="pt") as file:
            return int(file.get_slice(f"{last}.weight").get_shape()[0])
    except (OSError, SafetensorError):
        return 10  # `load_weights` says what is wrong with the file


def _class_names(given: str, trained_on: str) -> tuple[str, ...]:
    """Return the names given, in a file or separated by commas, or those of the data set the weights are of."""
    if given:
        a_file = os.path.isfile(given)  # noqa: PTH113  Path.is_file() fails where a list is too long for a name
        text = Path(given).read_text(encoding="utf-8") if a_file else given.replace(",", "\n")
        return tuple(line.strip() for line in text.splitlines() if line.strip())
    if trained_on == "shapes":
        from fedctta.data.shapes import KINDS

        return tuple(KINDS)
    from fedctta.data.editions import EDITIONS

    return EDITIONS[trained_on].classes if trained_on in EDITIONS else ()


def seed_of(name: str) -> int:
    """Return a seed that follows from a device's name, so that no two devices draw the same chance."""
    return zlib.crc32(name.encode())


def images_from(folder: Path | None, adapter: str, device: torch.device | str) -> Callable[[int], Tensor]:
    """Return what gives a method its clean, unlabelled images of the source."""

    def images(count: int) -> Tensor:
        if folder is None:
            raise UserError(f"adapter {adapter!r} needs {count} images of the source: give --source-images FOLDER")
        paths = files_below(folder)[:count]
        if len(paths) < count:
            raise UserError(f"{folder} has {len(paths)} images and adapter {adapter!r} needs {count}: add some")
        try:
            return to_input(np.stack([decode_file(Path(path), None) for path in paths]), device)
        except (OSError, ValueError) as error:
            raise UserError(f"the images in {folder} cannot be read as one batch: {error}") from error

    return images
