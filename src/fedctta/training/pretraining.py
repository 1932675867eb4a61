"""Make a source model: train on clean images, judge it on corrupted ones, write weights and card."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import nn

from fedctta.data.cache import Images, sha256
from fedctta.data.catalogue import load
from fedctta.data.corrupted import load_domains
from fedctta.data.domains import Domains
from fedctta.data.public import load_public, training_part
from fedctta.data.public_sets import PUBLIC
from fedctta.files import require_writable
from fedctta.models import build, size_option
from fedctta.models.zoo import save_weights
from fedctta.training.card import make_card
from fedctta.training.central import OnProgress, evaluate, train
from fedctta.training.dense_training import train_dense_source
from fedctta.training.federated import train_federated
from fedctta.training.plan import Plan, read_plan
from fedctta.training.recipe import epochs_of
from fedctta.training.starting_weights import STARTS, build_started, find_start
from fedctta.training.stretches import Stretches

SEVERITY = 5
"""Of the corruptions that a model is judged on."""


OnAccuracy = Callable[[int, float], None]
"""Called with the epochs done and the accuracy on the test images."""


def pretrain(
    values: Mapping[str, Any], on_progress: OnProgress | None = None, on_accuracy: OnAccuracy | None = None
) -> tuple[Path, dict[str, Any]]:
    """Train the model described by `values` and return the path of its weights and its card.

    Keys: model, dataset, recipe (a named one), device, precision (bf16 trains faster on CUDA), compile (true: torch
    compiles the network first), folder (where the data
    are), out (the weights' path; by default the cache, where `weights=auto` finds them), and every field of the recipe
    (epochs, lr, seed, ...) to change it. With federation=fedavg source clients train together, and the fields of
    `FederatedRecipe` (source_clients, rounds, local_epochs, skew, memory) tell how; unless batch is given, clients
    share the recipe's, so that an epoch has about as many steps as it would have for one alone. With dataset=scenes,
    or masked and a folder (its layout, and the size to resize to), the model predicts every pixel. With a public set
    (dataset=pacs), train names the domains to train on; their held-out images are left for runs. With watch=N,
    `on_accuracy` hears of the test images after every N epochs; nothing is chosen by it. With checkpoint (a path), a
    training that is stopped goes on where it was: see `stretches`.
    """
    plan = read_plan(values)
    require_writable(plan.path.parent)
    if plan.checkpoint is not None:
        require_writable(plan.checkpoint.parent)
    if plan.dense or plan.train:
        module, card = (_train_dense if plan.dense else _train_on_domains)(plan, on_progress)
    else:
        module, card = _train_classifier(plan, on_progress, on_accuracy)
    save_weights(module, plan.path, card)
    if plan.checkpoint is not None:
        plan.checkpoint.unlink(missing_ok=True)
    return plan.path, card


def prepare(values: Mapping[str, Any]) -> None:
    """Fetch and decode what a training reads, so that several at once find it in the cache."""
    plan = read_plan(values)
    if plan.dataset in PUBLIC:
        load_public(plan.dataset, folder=plan.folder, size=plan.size)
    elif not plan.dense:
        _read_classifier_data(plan)
    if plan.model in STARTS:
        find_start(STARTS[plan.model])


def _train_dense(plan: Plan, on_progress: OnProgress | None) -> tuple[nn.Module, dict[str, Any]]:
    """Return a model that predicts every pixel, and its card."""
    shown: dict[str, Any] = {"folder": plan.folder, "layout": plan.layout, "size": plan.size, "train": plan.train}
    known = plan.model, plan.dataset, plan.recipe, plan.device, on_progress
    return train_dense_source(*known, until=plan.until, **shown)


def _train_on_domains(plan: Plan, on_progress: OnProgress | None) -> tuple[nn.Module, dict[str, Any]]:
    """Return a model trained on some domains of a public set, and its card.

    It is judged by the held-out images of these domains, and by all images of the others.
    """
    whole = load_public(plan.dataset, folder=plan.folder, size=plan.size)
    shown = load_public(plan.dataset, size=plan.size, trained=plan.train)
    images, labels = training_part(whole, plan.dataset, plan.train)
    if plan.until is not None:
        epochs = epochs_of(plan.until, len(images), plan.recipe.batch)
        plan = replace(plan, recipe=replace(plan.recipe, epochs=epochs))
    module = build_started(plan.model, len(whole.classes), plan.recipe.seed, images.shape[1])
    _train(module, Images(images, labels, whole.classes), plan, on_progress)
    found = {name: evaluate(module, shown.images[name], shown.labels_of(name), plan.device) for name in shown.names}
    clean = sum(found[name] for name in plan.train) / len(plan.train)
    more = {
        "train": list(plan.train),
        "images": len(images),
        "size": plan.size,
        "start": STARTS[plan.model].told if plan.model in STARTS else "random",
        "accuracy_by_domain": found,
        "classes": list(whole.classes),
        "notes": list(shown.notes),
        **_federation(plan),
    }
    return module, make_card(plan.model, plan.dataset, module, plan.recipe, plan.device, clean, **more)


def _train_classifier(
    plan: Plan, on_progress: OnProgress | None, on_accuracy: OnAccuracy | None
) -> tuple[nn.Module, dict[str, Any]]:
    """Return a model that predicts one class an image, and its card."""
    images, test, domains = _read_classifier_data(plan)  # before training: what is missing is told at once
    sized = size_option(plan.model, min(images.images.shape[1:3]))
    module = build(plan.model, len(images.classes), seed=plan.recipe.seed, **sized)

    def tell(done: int, total: int, loss: float) -> None:
        if on_progress is not None:
            on_progress(done, total, loss)
        if on_accuracy is not None and plan.watch and done % plan.watch == 0:
            on_accuracy(done, evaluate(module, test.images, test.labels, plan.device))

    _train(module, images, plan, tell)
    return module, _judge(module, plan, test, domains)


def _read_classifier_data(plan: Plan) -> tuple[Images, Images, Domains]:
    """Return the images to train on, those to test on, and these corrupted."""
    images, test = (load(plan.dataset, split, plan.folder) for split in ("train", "test"))
    return images, test, load_domains(f"{plan.dataset}-c", SEVERITY, folder=plan.folder)


def _train(module: nn.Module, images: Images, plan: Plan, on_progress: OnProgress | None) -> None:
    """Train in place: by one alone, or by source clients together."""
    data, bf16 = (images.images, images.labels), plan.precision == "bf16"
    if plan.federation is None:
        stretches = None if plan.checkpoint is None else Stretches(plan.checkpoint, _identify(plan, images))
        how: dict[str, Any] = {"bf16": bf16, "compiled": plan.compiled, "stretches": stretches}
        train(module, *data, plan.recipe, plan.device, on_progress, **how)
    else:
        train_federated(module, *data, plan.recipe, plan.federation, plan.device, on_progress, bf16=bf16)


def _identify(plan: Plan, images: Images) -> dict[str, Any]:
    """Return what decides the result of a training, apart from the recipe and the weights to start from."""
    names = {"model": plan.model, "dataset": plan.dataset, "train": "+".join(plan.train)}
    data = {"size": plan.size, "images": sha256(images.images), "labels": sha256(images.labels)}
    return {**names, **data, "precision": plan.precision}


def _judge(module: nn.Module, plan: Plan, test: Images, domains: Domains) -> dict[str, Any]:
    """Return the card: how the model was trained, and how good it is on clean and corrupted images."""
    clean = evaluate(module, test.images, test.labels, plan.device)
    corrupted = {
        name: evaluate(module, domains.images[name], domains.labels_of(name), plan.device) for name in domains.names
    }
    more: dict[str, Any] = {"severity": SEVERITY, "notes": list(domains.notes), **_federation(plan)}
    return make_card(plan.model, plan.dataset, module, plan.recipe, plan.device, clean, corrupted, **more)


def _federation(plan: Plan) -> dict[str, Any]:
    """Tell how a model was trained, besides the recipe: in which precision, and by whom together."""
    if plan.federation is None:
        return {"precision": plan.precision}
    skew = "inf" if plan.federation.skew == math.inf else plan.federation.skew  # JSON has no infinity
    return {"precision": plan.precision, "federation": {"method": plan.method, **asdict(plan.federation), "skew": skew}}
