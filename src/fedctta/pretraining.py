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
from fedctta.models.zoo import cached_path, save_weights, weights_of
from fedctta.registry import read

PLAIN_KEYS = {
    "model": "resnet8",
    "dataset": "cifar10",
    "recipe": "standard",
    "device": "auto",
    "precision": "float32",
    "folder": None,
    "out": None,
}
PRECISIONS = ("float32", "bf16")
RECIPE_KEYS = {f.name: get_type_hints(Recipe)[f.name] for f in fields(Recipe)}


def pretrain(values: Mapping[str, Any], on_progress: OnProgress | None = None) -> tuple[Path, dict[str, Any]]:
    """Train the model described by `values` and return the path of its weights and its card.

    Keys: model, dataset, recipe (a named one), device, precision (bf16 trains faster on CUDA), folder (where the data
    are), out (the weights' path; by default the cache, where `weights=auto` finds them), and every field of the recipe
    (epochs, lr, seed, ...) to change it.
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
    if plain["precision"] not in PRECISIONS:
        raise unknown("precision", str(plain["precision"]), PRECISIONS)
    if plain["out"] is None and weights_of(model) != model:
        raise UserError(f"{model} takes the weights of {weights_of(model)}: train that one, or give out=PATH")
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
    train(module, images.images, images.labels, recipe, device, on_progress, bf16=plain["precision"] == "bf16")
    test = load(dataset, "test", folder)
    clean = evaluate(module, test.images, test.labels, device)
    domains = load_domains(f"{dataset}-c", 5, folder=folder)
    corrupted = {name: evaluate(module, domains.images[name], domains.labels, device) for name in domains.names}
    more = {"precision": plain["precision"], "severity": 5, "notes": list(domains.notes)}
    card = make_card(model, dataset, module, recipe, device, clean, corrupted, **more)
    save_weights(module, path, card)
    return path, card
