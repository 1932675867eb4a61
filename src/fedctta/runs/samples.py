"""A model and a few images of an experiment's data, for a look at them before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedctta.core.network import Network
from fedctta.data.catalogue import CLEAN, names
from fedctta.data.domains import UNLABELLED
from fedctta.data.masked import MaskedDomains
from fedctta.errors import UserError
from fedctta.keys import KEYS
from fedctta.machine import choose_device
from fedctta.models.inputs import read_batch
from fedctta.runs.cache import Cache
from fedctta.runs.settings import parse_single, single
from fedctta.runs.source_models import choose_model

USED = ("dataset", "severity", "domains", "folder", "layout", "size", "model", "weights", "device", "precision")


class Sample(NamedTuple):
    """A model, images x[B, ...] spread over all domains, their labels if there are some, and the names of classes."""

    network: Network
    x: Tensor
    labels: Tensor | None
    classes: tuple[str, ...]


def load_sample(words: Sequence[str], count: int) -> Sample:
    """Return the model and images that words describe; refuse words that say something else."""
    values = parse_single(read_data_word(words), "doctor")
    for key in values:
        if key not in USED and (key in KEYS or "." in key):
            raise UserError(f"{key} has no effect on doctor, which looks at a model and data: drop it")
    experiment = single(values)
    cache = Cache()
    data = cache.data(experiment)
    if isinstance(data, MaskedDomains):
        raise UserError(f"dataset={experiment.dataset} has a class for every pixel: give data with one per image")
    device = choose_device(experiment.device)
    network = cache.network(experiment, choose_model(experiment, data), data, device)
    each = -(-count // len(data.names))
    images, labels = [], []
    for name in data.names:
        chosen = np.linspace(0, len(data.images[name]) - 1, min(each, len(data.images[name]))).astype(int)
        images.append(np.asarray(data.images[name])[chosen])
        labels.append(data.labels_of(name)[chosen])
    found = torch.tensor(np.concatenate(labels)[:count])
    x = read_batch(np.concatenate(images)[:count], device)
    return Sample(network, x, None if (found == UNLABELLED).any() else found, tuple(data.classes))


def read_data_word(words: Sequence[str]) -> list[str]:
    """Let data=X stand for dataset=X, or for dataset=folders folder=X where X is a path (arrays: of .npy, .npz files).

    >>> read_data_word(["data=shapes-c"]), read_data_word(["data=my/images", "size=64"])
    (['dataset=shapes-c'], ['dataset=folders', 'folder=my/images', 'size=64'])
    """
    found: list[str] = []
    for word in words:
        key, _, value = word.partition("=")
        if key != "data":
            found.append(word)
        elif value in names() and value not in CLEAN:
            found.append(f"dataset={value}")
        else:
            kind = "arrays" if any(Path(value).glob("*.np[yz]")) else "folders"
            found.extend([f"dataset={kind}", f"folder={value}"])
    return found
