"""Let a client method learn at the source, and keep what it learnt where its adapter looks for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedctta.adapters.common.learnt import learnt_path
from fedctta.core.network import Network
from fedctta.data.catalogue import CLEAN, load
from fedctta.errors import UserError, unknown
from fedctta.files import require_writable
from fedctta.machine import choose_device
from fedctta.models import ARCHITECTURES, model_for
from fedctta.models.zoo import save_tensors
from fedctta.runs.source_models import load_module
from fedctta.training.learning import OnRound, read_training, train_method

PLAIN_KEYS = {
    "method": None,
    "model": "auto",
    "dataset": "cifar10",
    "weights": "auto",
    "device": "auto",
    "folder": None,
    "out": None,
}


def learn(values: Mapping[str, Any], on_round: OnRound | None = None) -> tuple[Path, dict[str, Any]]:
    """Train the method described by `values` on a trained source model; return the path of its file and its card.

    Keys: method, model, dataset, weights (of the source model), device, folder (where the data are), out (the file's
    path; by default the one that the adapter finds with the same model if its parameter is "auto"), and the method's
    own options (see `fedctta.training.learning.trainings`).
    """
    plain = PLAIN_KEYS | {key: values[key] for key in values if key in PLAIN_KEYS}
    options = {key: values[key] for key in values if key not in PLAIN_KEYS}
    method, dataset = str(plain["method"]), str(plain["dataset"])
    read_training(method, options)
    if dataset not in CLEAN:
        raise unknown("data set to learn from", dataset, CLEAN)
    out = None if plain["out"] is None else Path(str(plain["out"]))
    if out is not None and out.suffix != ".safetensors":
        raise UserError(f"out={out} must end in .safetensors")
    device = choose_device(str(plain["device"]))
    folder = None if plain["folder"] is None else Path(str(plain["folder"]))
    model, weights = model_for(dataset, str(plain["model"])), str(plain["weights"])
    if model in ARCHITECTURES and ARCHITECTURES[model].dense:
        raise UserError(f"model={model} predicts every pixel and {dataset} has one class an image: use another model")

    images = load(dataset, "train", folder)
    network = Network(load_module(dataset, model, weights, len(images.classes)), device)
    path = out or learnt_path(method, network)
    require_writable(path.parent)
    tensors, card = train_method(method, network, images.images, images.labels, options, on_round)
    card = {"model": model, "dataset": dataset, "weights": weights, **card}
    save_tensors(tensors, path, card)
    return path, card
