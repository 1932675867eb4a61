"""Make a source model: train on clean images, judge it on corrupted ones, write weights and card."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedctta.data.catalogue import CLEAN, load
from fedctta.data.corrupted import load_domains
from fedctta.data.dense import DENSE
from fedctta.errors import UserError, unknown
from fedctta.files import require_writable
from fedctta.machine import choose_device
from fedctta.models import ARCHITECTURES, build
from fedctta.models.zoo import FEDERATIONS, cached_path, save_weights, variant, weights_of
from fedctta.registry import parameter_types, read
from fedctta.training.central import RECIPES, OnProgress, Recipe, evaluate, make_card, train
from fedctta.training.dense import DENSE_RECIPE
from fedctta.training.dense_training import train_dense_source
from fedctta.training.federated import FederatedRecipe, train_federated

PLAIN_KEYS = {
    "model": "resnet8",
    "dataset": "cifar10",
    "recipe": "standard",
    "federation": "none",
    "device": "auto",
    "precision": "float32",
    "folder": None,
    "layout": "auto",
    "size": None,
    "out": None,
}
PRECISIONS = ("float32", "bf16")
RECIPE_KEYS = parameter_types(Recipe)
FEDERATION_KEYS = parameter_types(FederatedRecipe)


def pretrain(values: Mapping[str, Any], on_progress: OnProgress | None = None) -> tuple[Path, dict[str, Any]]:
    """Train the model described by `values` and return the path of its weights and its card.

    Keys: model, dataset, recipe (a named one), device, precision (bf16 trains faster on CUDA), folder (where the data
    are), out (the weights' path; by default the cache, where `weights=auto` finds them), and every field of the recipe
    (epochs, lr, seed, ...) to change it. With federation=fedavg source clients train together, and the fields of
    `FederatedRecipe` (source_clients, rounds, local_epochs, skew, memory) tell how; unless batch is given, clients
    share the recipe's, so that an epoch has about as many steps as it would have for one alone. With dataset=scenes,
    or masked and a folder (its layout, and the size to resize to), the model predicts every pixel.
    """
    known = {**PLAIN_KEYS, **RECIPE_KEYS, **FEDERATION_KEYS}
    for key in values:
        if key not in known:
            raise unknown("key", key, known)
    plain = PLAIN_KEYS | {key: values[key] for key in values if key in PLAIN_KEYS}
    model, dataset, named = str(plain["model"]), str(plain["dataset"]), str(plain["recipe"])
    dense = dataset in DENSE
    if dense:
        model = str(values.get("model", "unet"))
        for key in ("recipe", "federation", "precision"):
            if plain[key] != PLAIN_KEYS[key]:
                raise UserError(f"{key}={plain[key]} is for data with one class an image: drop it with {dataset}")
    elif dataset not in CLEAN:
        raise unknown("data set to train on", dataset, {**CLEAN, **DENSE})
    elif plain["layout"] != "auto" or plain["size"] is not None:
        raise UserError(f"layout and size are for dataset=masked: drop them with {dataset}")
    elif model in ARCHITECTURES and ARCHITECTURES[model].dense:
        raise UserError(f"model={model} predicts every pixel and {dataset} has one class an image: use another model")
    if named not in RECIPES:
        raise unknown("recipe", named, RECIPES)
    if plain["federation"] not in FEDERATIONS:
        raise unknown("federation", str(plain["federation"]), FEDERATIONS)
    if plain["precision"] not in PRECISIONS:
        raise unknown("precision", str(plain["precision"]), PRECISIONS)
    if plain["out"] is None and weights_of(model) != model:
        raise UserError(f"{model} takes the weights of {weights_of(model)}: train that one, or give out=PATH")
    changes = {key: read(values[key], RECIPE_KEYS[key], key) for key in values if key in RECIPE_KEYS}
    recipe = replace(DENSE_RECIPE if dense else RECIPES[named], **changes)
    federation = _federation(values)
    if federation is not None:
        batch = recipe.batch if "batch" in values else federation.share(recipe.batch)
        recipe = replace(recipe, epochs=federation.epochs, batch=batch)
    device = choose_device(str(plain["device"]))
    folder = None if plain["folder"] is None else Path(str(plain["folder"]))
    suffix = variant(named, str(plain["federation"]))
    path = cached_path(model, dataset, suffix) if plain["out"] is None else Path(str(plain["out"]))
    if path.suffix != ".safetensors":
        raise UserError(f"out={path} must end in .safetensors")
    require_writable(path.parent)

    if dense:
        shown = {"folder": folder, "layout": str(plain["layout"]), "size": read(plain["size"], int | None, "size")}
        module, card = train_dense_source(model, dataset, recipe, device, on_progress, **shown)
        save_weights(module, path, card)
        return path, card
    images, test = load(dataset, "train", folder), load(dataset, "test", folder)
    domains = load_domains(f"{dataset}-c", 5, folder=folder)  # before training: what is missing is told at once
    module = build(model, len(images.classes), seed=recipe.seed)
    bf16 = plain["precision"] == "bf16"
    if federation is None:
        train(module, images.images, images.labels, recipe, device, on_progress, bf16=bf16)
    else:
        train_federated(module, images.images, images.labels, recipe, federation, device, on_progress, bf16=bf16)
    clean = evaluate(module, test.images, test.labels, device)
    corrupted = {name: evaluate(module, domains.images[name], domains.labels, device) for name in domains.names}
    more = {"precision": plain["precision"], "severity": 5, "notes": list(domains.notes)}
    if federation is not None:
        skew = "inf" if federation.skew == math.inf else federation.skew  # JSON has no infinity
        more["federation"] = {"method": plain["federation"], **asdict(federation), "skew": skew}
    card = make_card(model, dataset, module, recipe, device, clean, corrupted, **more)
    save_weights(module, path, card)
    return path, card


def _federation(values: Mapping[str, Any]) -> FederatedRecipe | None:
    """Return how source clients train together, or None if there are none."""
    given = [key for key in values if key in FEDERATION_KEYS]
    if values.get("federation", "none") == "none":
        if given:
            raise UserError(f"{given[0]} is for source clients that train together: add federation=fedavg, or drop it")
        return None
    if "epochs" in values:
        raise UserError("with federation=fedavg epochs are rounds x local_epochs: give these instead of epochs")
    return FederatedRecipe(**{key: read(values[key], FEDERATION_KEYS[key], key) for key in given})
