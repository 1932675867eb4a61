"""The data of a run: by name, from a folder, or given as an object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedctta.adapters import adapters
from fedctta.aggregators import aggregators
from fedctta.data.catalogue import load
from fedctta.data.corrupted import SETS, Domains, check_labels, load_domains
from fedctta.data.corruptions import BENCHMARK, EXTRA, NAMES
from fedctta.data.dense import DENSE, check_masked, load_dense
from fedctta.data.masked import AnyDomains, MaskedDomains
from fedctta.data.scenes import load as load_scenes
from fedctta.errors import UserError, unknown
from fedctta.models.inputs import to_input
from fedctta.registry import read_names, refuse_twice
from fedctta.runs.settings import Experiment


def data_keys(experiment: Experiment) -> tuple[Any, ...]:
    """Return what decides which data are loaded: the arguments of `load_data`."""
    return tuple(getattr(experiment, key) for key in ("dataset", "severity", "domains", "folder", "layout", "size"))


def load_data(
    dataset: str, severity: int, domains: str, folder: str | None, layout: str, size: int | None, given: Any = None
) -> AnyDomains:
    """Load the data set of that name, or check the one that is `given` as an object."""
    if isinstance(given, Domains):
        return check_domains(given)
    if isinstance(given, MaskedDomains):
        return check_masked(given)
    if dataset != "masked" and (layout, size) != ("auto", None):
        raise UserError(f"layout and size are for dataset=masked and have no effect on {dataset}: drop them")
    place = None if folder is None else Path(folder)
    if dataset in DENSE:
        return load_dense(dataset, domains, place, severity=severity, layout=layout, size=size)
    if dataset not in SETS:
        raise unknown("data set to run on", dataset, {**SETS, **DENSE})
    named = {"benchmark": BENCHMARK, "extra": EXTRA, "all": NAMES}
    names = named.get(domains) or read_names(domains, "domains")
    return load_domains(dataset, severity, names=names, folder=place)


def check_domains(data: Domains) -> Domains:
    """Refuse images that are not uint8 [n, H, W, 3] in every domain, with one label each, of the known classes."""
    refuse_twice(data.names, "Domains.names")
    for name in data.names:
        images = data.images.get(name)
        if images is None:
            raise UserError(f"domain {name!r} has no images: give Domains.images an array for every name")
        if images.dtype != np.uint8:
            kind = "hold NaN" if _has_nan(images) else f"are {images.dtype}"
            raise UserError(f"images of domain {name!r} {kind}: give uint8 values from 0 to 255")
        if images.ndim != 4 or images.shape[-1] != 3 or len(images) != len(data.labels):
            raise UserError(
                f"images of domain {name!r} have shape {images.shape}: give [{len(data.labels)}, height, width, 3]"
            )
    if len({data.images[name].shape for name in data.names}) != 1:
        raise UserError("domains have images of different sizes: give all domains the same shape")
    check_labels(data.labels, data.classes, "Domains.labels")
    return data


def _has_nan(images: NDArray[Any]) -> bool:
    return bool(np.issubdtype(images.dtype, np.floating) and np.isnan(images).any())


def public_images(experiment: Experiment, count: int, device: torch.device) -> Tensor:
    """Return the first clean test images, as a probe that all clients know."""
    if experiment.dataset == "scenes":
        return to_input(np.asarray(load_scenes("test").images[:count]), device)
    if experiment.dataset in DENSE:
        raise _no_images(experiment)
    name = experiment.dataset.removesuffix("-c")
    folder = None if experiment.folder is None else Path(experiment.folder)
    images = load(name, "test", folder, progress=False).images[:count]
    return to_input(np.asarray(images), device)


def _no_images(experiment: Experiment) -> UserError:
    """Say which method asks for images that are not there, and what to do."""
    if experiment.method(adapters, experiment.adapter).source_images:
        kind, name, remedy = "adapter", experiment.adapter, adapters.classes()[experiment.adapter].without_images
    else:
        kind, name = "aggregator", experiment.aggregator
        remedy = aggregators.classes()[name].without_images
    return UserError(
        f"dataset={experiment.dataset} has no images that all know, which {kind} {name} asks for: use"
        f"{f' {name}.{remedy} or' if remedy else ''} another {kind}"
    )
