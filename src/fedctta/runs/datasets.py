"""The data of a run: by name, from a folder, or given as an object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedctta.adapters import adapters
from fedctta.aggregators import aggregators
from fedctta.data.catalogue import load
from fedctta.data.corrupted import SETS, load_domains
from fedctta.data.corruptions import BENCHMARK, EXTRA, NAMES
from fedctta.data.dense import DENSE, load_dense
from fedctta.data.domains import CLEAN, Domains
from fedctta.data.masked import AnyDomains, MaskedDomains
from fedctta.data.own import OWN, load_own, take_given
from fedctta.data.public import load_public
from fedctta.data.public_sets import PUBLIC
from fedctta.data.scenes import load as load_scenes
from fedctta.data.source_images import load_source_images
from fedctta.errors import UserError, either, unknown
from fedctta.models.inputs import read_batch, to_input
from fedctta.registry import read_names
from fedctta.runs.settings import Experiment
from fedctta.streams import schedules


def data_keys(experiment: Experiment) -> tuple[Any, ...]:
    """Return what decides which data are loaded: the arguments of `load_data`."""
    values = {key: getattr(experiment, key) for key in ("dataset", "severity", "domains", "folder", "layout", "size")}
    if experiment.method(schedules, experiment.stream).clean:
        if experiment.dataset not in SETS:
            raise UserError(
                f"{experiment.stream}.clean=true adds the images of a corrupted test set as they are, and"
                f" dataset={experiment.dataset} is none: drop it, or use dataset={either(SETS)}"
            )
        if CLEAN not in experiment.domains.split("+"):
            values["domains"] += f"+{CLEAN}"
    return tuple(values.values())


def load_data(
    dataset: str,
    severity: int,
    domains: str,
    folder: str | None,
    layout: str,
    size: int | None,
    trained: tuple[str, ...] = (),
    given: Any = None,
) -> AnyDomains:
    """Load the data set of that name, or check the one that is `given` as an object.

    Of the domains of a public set that the model was `trained` on, only held-out images are loaded.
    """
    if isinstance(given, Domains | MaskedDomains):
        return take_given(given, domains, severity=severity, folder=folder, layout=layout, size=size)
    place = None if folder is None else Path(folder)
    if dataset in PUBLIC:
        options: dict[str, Any] = {"severity": severity, "layout": layout, "size": size, "trained": trained}
        return load_public(dataset, domains, place, **options)
    if dataset in OWN:
        return load_own(dataset, domains, place, severity=severity, layout=layout, size=size)
    if dataset != "masked" and (layout, size) != ("auto", None):
        raise UserError(f"layout and size have no effect on {dataset}: drop them")
    if dataset in DENSE:
        return load_dense(dataset, domains, place, severity=severity, layout=layout, size=size)
    if dataset not in SETS:
        raise unknown("data set to run on", dataset, {**SETS, **PUBLIC, **DENSE, **OWN})
    named = {"benchmark": BENCHMARK, "extra": EXTRA, "all": NAMES}
    names = tuple(each for word in read_names(domains, "domains") for each in named.get(word, (word,)))
    return load_domains(dataset, severity, names=names, folder=place)


def public_images(experiment: Experiment, data: AnyDomains, count: int, device: torch.device) -> Tensor:
    """Return images that all clients know: named ones, some the model was trained on, or the first clean ones."""
    if experiment.source_images is not None:
        return read_batch(load_source_images(experiment.source_images, data, count, experiment.seed), device)
    if isinstance(data, Domains) and data.training:
        known = np.concatenate([array[: -(-count // len(data.training))] for array in data.training.values()])
        return read_batch(known[:count], device)
    return clean_images(experiment, count, device)


def clean_images(experiment: Experiment, count: int, device: torch.device) -> Tensor:
    """Return the first images of the data set that was corrupted; refuse another, which has none."""
    if experiment.dataset == "scenes":
        return to_input(np.asarray(load_scenes("test").images[:count]), device)
    if experiment.dataset not in SETS:
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
        f"{f' {name}.{remedy},' if remedy else ''} source_images=PATH, or another {kind}"
    )
