"""Make a source model: train on clean images, judge it on corrupted ones, write weights and card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from fedctta.data.catalogue import CLEAN, load
from fedctta.data.corrupted import load_domains
from fedctta.errors import UserError, unknown
from fedctta.files import require_writable
from fedctta.machine import choose_device
from fedctta.models import build
from fedctta.models.pretrain import RECIPES, OnProgress, Recipe, evaluate, make_card, train
from fedctta.models.zoo import cached_path, save_weights
from fedctta.registry import read

PLAIN_KEYS = {
    "model": "resnet8",
    "dataset": "cifar10",
    "recipe": "standard",
    "device": "auto",
    "folder": None,
    "out": None,
}
RECIPE_KEYS = {f.name: get_type_hints(Recipe)[f.name] for f in fields(Recipe)}


def pretrain(values: Mapping[str, Any], on_progress: OnProgress | None = None) -> tuple[Path, dict[str, Any]]:
    """Train the model described by `values` and return the path of its weights and its card.

    Keys: model, dataset, recipe (a named one), device, folder (where the data are), out (the weights' path; by default
    the cache, where `weights=auto` finds them), and every field of the recipe (epochs, lr, seed, ...) to change it.
    """
    known = {**PLAIN_KEYS, **RECIPE_KEYS}
    for key in values:
        if key not in known:
            raise unknown("key", key, known)
    plain = PLAIN_KEYS | {key: values[key] for key in values if key in PLAIN_KEYS}
    model, dataset, named = str(plain["model"]), str(plain["dataset"]), str(plain["recipe"])
    if dataset not in CLEAN:
        raise unknown("data set to train on", dataset, CLEAN)
    if named not in RECIPES:
        raise unknown("recipe", named, RECIPES)
    changes = {key: read(values[key], RECIPE_KEYS[key], key) for key in values if key in RECIPE_KEYS}
    recipe = replace(RECIPES[named], **changes)
    device = choose_device(str(plain["device"]))
    folder = None if plain["folder"] is None else Path(str(plain["folder"]))
    suffix = "" if named == "standard" else named
    path = cached_path(model, dataset, suffix) if plain["out"] is None else Path(str(plain["out"]))
    if path.suffix != ".safetensors":
        raise UserError(f"out={path} must end in .safetensors")
    require_writable(path.parent)

    images = load(dataset, "train", folder)
    module = build(model, len(images.classes), seed=recipe.seed)
    train(module, images.images, images.labels, recipe, device, on_progress)
    test = load(dataset, "test", folder)
    clean = evaluate(module, test.images, test.labels, device)
    domains = load_domains(f"{dataset}-c", 5, folder=folder)
    corrupted = {name: evaluate(module, domains.images[name], domains.labels, device) for name in domains.names}
    card = make_card(model, dataset, module, recipe, device, clean, corrupted, severity=5, notes=list(domains.notes))
    save_weights(module, path, card)
    return path, card
