"""Source models that predict every pixel: trained on clean scenes, or on a labelled folder, and judged elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedctta.data import scenes
from fedctta.data.dense import DENSE, load_dense
from fedctta.data.masked import MaskedDomains, scenes_domains
from fedctta.data.public import load_public, training_part
from fedctta.data.public_sets import PUBLIC
from fedctta.errors import UserError, unknown
from fedctta.models import ARCHITECTURES, build
from fedctta.training.card import make_card
from fedctta.training.central import OnProgress
from fedctta.training.dense import evaluate_dense, train_dense
from fedctta.training.recipe import Recipe, epochs_of

HELD_OUT = 10
"""In a folder, every n-th image of a domain is kept for testing, and not used for training."""

Pairs = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def train_dense_source(
    model: str,
    dataset: str,
    recipe: Recipe,
    device: torch.device,
    on_progress: OnProgress | None = None,
    until: int | None = None,
    **options: Any,
) -> tuple[nn.Module, dict[str, Any]]:
    """Return the trained model and its card; `until` steps take the place of the recipe's epochs.

    `options` (folder, layout, size, train) say which data.
    """
    if model not in ARCHITECTURES:
        raise unknown("model", model, ARCHITECTURES)
    if not ARCHITECTURES[model].dense:
        fit = " or ".join(name for name, architecture in ARCHITECTURES.items() if architecture.dense)
        raise UserError(f"model={model} gives one prediction an image and {dataset} has masks: use model={fit}")
    train = options.get("train", ())
    (images, masks), tests, data = _parts(dataset, options)
    if until is not None:
        recipe = replace(recipe, epochs=epochs_of(until, len(images), recipe.batch))
    module = build(model, len(data.classes), seed=recipe.seed)
    train_dense(module, images, masks, recipe, device, on_progress)
    scores = {name: evaluate_dense(module, *pairs, device) for name, pairs in tests.items()}
    clean = scores.pop("clean") if dataset == "scenes" else _mean({name: scores[name] for name in train or scores})
    accuracy, miou = ({name: found[kind] for name, found in scores.items()} for kind in ("pixel_accuracy", "miou"))
    more = {"miou": clean["miou"], "miou_by_corruption": miou, "classes": list(data.classes), "notes": list(data.notes)}
    if train:
        more |= {"train": list(train), "size": options.get("size")}
    if dataset == "scenes":
        more["drawings"] = scenes.VERSION
    return module, make_card(model, dataset, module, recipe, device, clean["pixel_accuracy"], accuracy, **more)


def _parts(dataset: str, options: Mapping[str, Any]) -> tuple[Pairs, dict[str, Pairs], MaskedDomains]:
    """Return images and masks to learn from, those of every domain to judge by, and the data they come from."""
    options = dict(options)
    train = options.pop("train", ())
    if dataset in PUBLIC:
        return _public_parts(dataset, train, options)
    if dataset not in DENSE:
        raise unknown("data set with masks", dataset, DENSE)
    data = load_dense(dataset, **options)
    if dataset == "scenes":
        clean, data = scenes.load("train"), scenes_domains(("clean", *scenes.SHIFTS))
        return (clean.images, clean.masks), {n: (data.images[n], data.labels[n]) for n in data.names}, data
    held = {name: np.arange(len(data.images[name])) % HELD_OUT == HELD_OUT - 1 for name in data.names}
    images = np.concatenate([data.images[name][~held[name]] for name in data.names])
    masks = np.concatenate([data.labels[name][~held[name]] for name in data.names])
    tests = {name: (data.images[name][held[name]], data.labels[name][held[name]]) for name in data.names}
    tests = {name: pairs for name, pairs in tests.items() if len(pairs[0])}
    if not tests:
        raise UserError(f"no domain has {HELD_OUT} images, so that one could be kept to judge the model by: add some")
    return (images, masks), tests, data


def _public_parts(
    dataset: str, train: Sequence[str], options: Mapping[str, Any]
) -> tuple[Pairs, dict[str, Pairs], MaskedDomains]:
    """Do the same for sites of a public set: the held-out images of those to train on, and all of others, judge."""
    whole, shown = (load_public(dataset, **options, trained=trained) for trained in ((), train))
    assert isinstance(shown, MaskedDomains)
    tests = {name: (shown.images[name], shown.labels[name]) for name in shown.names}
    return training_part(whole, dataset, train), tests, shown


def _mean(scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the mean over domains of every number."""
    return {kind: float(np.mean([s[kind] for s in scores.values()])) for kind in ("pixel_accuracy", "miou")}
