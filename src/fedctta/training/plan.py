"""From words to a training that can be done: every key checked, and what was left out filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedctta.data.catalogue import CLEAN
from fedctta.data.dense import DENSE, is_dense
from fedctta.data.public_sets import PUBLIC
from fedctta.errors import UserError, either, unknown
from fedctta.machine import choose_device
from fedctta.models import ARCHITECTURES, model_for
from fedctta.models.zoo import FEDERATIONS, cached_path, variant, weights_of
from fedctta.registry import parameter_types, read, read_names
from fedctta.training.dense import DENSE_RECIPE
from fedctta.training.federated import FederatedRecipe
from fedctta.training.recipe import FINE_TUNE, RECIPES, STEPS, Recipe, usual_recipe
from fedctta.training.starting_weights import STARTS

PLAIN_KEYS = {
    "model": "resnet8",
    "dataset": "cifar10",
    "recipe": "standard",
    "federation": "none",
    "device": "auto",
    "precision": "float32",
    "compile": False,
    "folder": None,
    "layout": "auto",
    "size": None,
    "train": None,
    "watch": 0,
    "checkpoint": None,
    "out": None,
}
PRECISIONS = ("float32", "bf16")
RECIPE_KEYS = parameter_types(Recipe)
FEDERATION_KEYS = parameter_types(FederatedRecipe)


@dataclass(frozen=True)
class Plan:
    """What is trained, on what, how and where; `path` is where the weights go."""

    model: str
    dataset: str
    recipe: Recipe
    method: str  # how source clients train together, "none" if there are none
    federation: FederatedRecipe | None
    precision: str
    compiled: bool
    device: torch.device
    path: Path
    folder: Path | None
    layout: str
    size: int | None
    train: tuple[str, ...] = ()  # the domains of a public set to train on
    until: int | None = None  # steps after which training ends, in place of the recipe's epochs
    watch: int = 0  # epochs from one look at the test images to the next
    checkpoint: Path | None = None  # where a training in several stretches keeps its place

    @property
    def dense(self) -> bool:
        """Whether the model predicts every pixel."""
        return is_dense(self.dataset)


SERIES = Recipe(epochs=17, batch=32, optimizer="adam", lr=3e-3, weight_decay=0.0, augment="none")
"""For series; unless epochs are given, they are those of `STEPS` steps."""


def is_series(dataset: str) -> bool:
    """Whether a data set holds series in place of images."""
    return dataset in PUBLIC and PUBLIC[dataset].kind == "arrays"


def name_weights(train: Sequence[str], recipe: str, method: str) -> str:
    """Return what the name of weights ends in: the domains they know, and how they were made if it is not usual.

    >>> name_weights(("photo", "sketch"), "standard", "fedavg"), name_weights((), "standard", "none")
    ('photo+sketch-fedavg', '')
    """
    return "-".join(filter(None, ("+".join(train), variant(recipe, method))))


def read_plan(values: Mapping[str, Any]) -> Plan:
    """Return the training that `values` describe; see `pretraining.pretrain` for their keys."""
    known = {**PLAIN_KEYS, **RECIPE_KEYS, **FEDERATION_KEYS}
    for key in values:
        if key not in known:
            raise unknown("key", key, known)
    plain = PLAIN_KEYS | {key: values[key] for key in values if key in PLAIN_KEYS}
    model, dataset, method = str(plain["model"]), str(plain["dataset"]), str(plain["federation"])
    if dataset in PUBLIC:
        model = str(values.get("model", model_for(dataset, dense=PUBLIC[dataset].dense)))
    train = _read_train(plain)
    if is_dense(dataset):
        model = str(values.get("model", "unet"))
        _check_dense(plain)
    else:
        _check_classes(plain | {"model": model})
    _check_names(plain)
    if plain["out"] is None and weights_of(model) != model:
        raise UserError(f"{model} takes the weights of {weights_of(model)}: train that one, or give out=PATH")
    tunes = model in STARTS and dataset in PUBLIC and "recipe" not in values
    by_model = usual_recipe(model, dataset) if plain["recipe"] == "standard" else None
    by_data = DENSE_RECIPE if is_dense(dataset) else SERIES if is_series(dataset) else by_model
    usual = FINE_TUNE if tunes else by_data
    recipe, federation = _read_recipe(values, usual), _read_federation(values)
    if federation is not None:
        batch = recipe.batch if "batch" in values else federation.share(recipe.batch)
        recipe = replace(recipe, epochs=federation.epochs, batch=batch)
    return Plan(
        model=model,
        dataset=dataset,
        recipe=recipe,
        method=method,
        federation=federation,
        precision=str(plain["precision"]),
        compiled=_read_compile(plain),
        device=choose_device(str(plain["device"])),
        path=_choose_path(plain["out"], model, dataset, name_weights(train, str(plain["recipe"]), method)),
        folder=None if plain["folder"] is None else Path(str(plain["folder"])),
        layout=str(plain["layout"]),
        size=read(plain["size"], int | None, "size"),
        train=train,
        watch=_read_watch(plain),
        checkpoint=_read_checkpoint(plain),
        until=STEPS if train and usual and federation is None and "epochs" not in values else None,
    )


def _read_train(plain: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the domains to train on; a public set must be given some, and nothing else has any."""
    dataset = str(plain["dataset"])
    if dataset not in PUBLIC:
        if plain["train"] is not None:
            raise UserError(f"train={plain['train']} is for {either(PUBLIC)}: drop it with {dataset}")
        return ()
    known = PUBLIC[dataset].domains
    if plain["train"] is None:
        raise UserError(f"{dataset} has the domains {', '.join(known)}: say on which to train, as train={known[0]}")
    names = known if plain["train"] == "all" else read_names(str(plain["train"]), "train")
    for name in names:
        if name not in known:
            raise unknown("domain", name, known)
    return tuple(name for name in known if name in names)


def _read_watch(plain: Mapping[str, Any]) -> int:
    """Return after how many epochs the accuracy is told each time; 0 for never."""
    watch: int = read(plain["watch"], int, "watch")
    if watch < 0:
        raise UserError(f"watch={watch} must be a number of epochs, or 0 to tell nothing")
    if watch and plain["federation"] != "none":
        raise UserError(f"watch={watch} is for training in one place: drop it with federation={plain['federation']}")
    if watch and (is_dense(str(plain["dataset"])) or plain["dataset"] in PUBLIC):
        raise UserError(
            f"watch={watch} is for sets with test images of one class each: drop it with {plain['dataset']}"
        )
    return watch


def _read_checkpoint(plain: Mapping[str, Any]) -> Path | None:
    """Return the file that a training in several stretches keeps its place in."""
    if plain["checkpoint"] is None:
        return None
    if plain["federation"] != "none":
        raise UserError(f"checkpoint is for training in one place: drop it with federation={plain['federation']}")
    path = Path(str(plain["checkpoint"]))
    if path.suffix != ".safetensors":
        raise UserError(f"checkpoint={path} must end in .safetensors")
    return path


def _read_compile(plain: Mapping[str, Any]) -> bool:
    """Return whether torch compiles the network."""
    compiled: bool = read(plain["compile"], bool, "compile")
    if compiled and plain["federation"] != "none":
        raise UserError(f"compile is for training in one place: drop it with federation={plain['federation']}")
    return compiled


def _check_dense(plain: Mapping[str, Any]) -> None:
    """Refuse what has no effect where every pixel has a class."""
    for key in ("recipe", "federation", "precision", "compile", "watch", "checkpoint"):
        if plain[key] != PLAIN_KEYS[key]:
            raise UserError(f"{key}={plain[key]} is for data with one class an image: drop it with {plain['dataset']}")


def _check_classes(plain: Mapping[str, Any]) -> None:
    """Refuse a data set that is not known, and what does not go with one class an image."""
    model, dataset = str(plain["model"]), str(plain["dataset"])
    if dataset not in CLEAN and dataset not in PUBLIC:
        raise unknown("data set to train on", dataset, {**CLEAN, **PUBLIC, **DENSE})
    reads = model in ARCHITECTURES and ARCHITECTURES[model].series
    if reads != is_series(dataset):
        fit = " or ".join(name for name, each in ARCHITECTURES.items() if each.series != reads and not each.dense)
        raise UserError(
            f"model={model} reads {'series' if reads else 'images'} and {dataset} has none: use model={fit}"
        )
    if plain["layout"] != "auto" or (plain["size"] is not None and dataset not in PUBLIC):
        raise UserError(f"layout and size are for dataset=masked: drop them with {dataset}")
    if model in ARCHITECTURES and ARCHITECTURES[model].dense:
        raise UserError(f"model={model} predicts every pixel and {dataset} has one class an image: use another model")


def _check_names(plain: Mapping[str, Any]) -> None:
    """Refuse a recipe, a federation or a precision that does not exist."""
    for key, names in (("recipe", RECIPES), ("federation", FEDERATIONS), ("precision", PRECISIONS)):
        if str(plain[key]) not in names:
            raise unknown(key, str(plain[key]), names)


def _read_recipe(values: Mapping[str, Any], usual: Recipe | None) -> Recipe:
    """Return the named recipe, or `usual` in its place, with the changes that were given."""
    changes = {key: read(values[key], RECIPE_KEYS[key], key) for key in values if key in RECIPE_KEYS}
    return replace(usual or RECIPES[str(values.get("recipe", PLAIN_KEYS["recipe"]))], **changes)


def _read_federation(values: Mapping[str, Any]) -> FederatedRecipe | None:
    """Return how source clients train together, or None if there are none."""
    given = [key for key in values if key in FEDERATION_KEYS]
    if values.get("federation", "none") == "none":
        if given:
            raise UserError(f"{given[0]} is for source clients that train together: add federation=fedavg, or drop it")
        return None
    if "epochs" in values:
        raise UserError("with federation=fedavg epochs are rounds x local_epochs: give these instead of epochs")
    return FederatedRecipe(**{key: read(values[key], FEDERATION_KEYS[key], key) for key in given})


def _choose_path(out: Any, model: str, dataset: str, suffix: str) -> Path:
    """Return where the weights go: to `out`, or to the cache, where `weights=auto` finds them."""
    path = cached_path(model, dataset, suffix) if out is None else Path(str(out))
    if path.suffix != ".safetensors":
        raise UserError(f"out={path} must end in .safetensors")
    return path
