"""Data and models, loaded once for all runs that share them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedctta.core.network import Network
from fedctta.data.corrupted import SETS
from fedctta.data.masked import AnyDomains
from fedctta.data.public_sets import PUBLIC
from fedctta.models import ARCHITECTURES, USUAL, model_for
from fedctta.models.source import Source
from fedctta.runs.datasets import clean_images, data_keys, load_data, public_images
from fedctta.runs.settings import Experiment
from fedctta.runs.source_models import find_source, load_module


class Cache:
    """Loads data and models, and keeps the last two of each.

    `objects` may hold a "model" and a "dataset" that take the place of those an experiment names.
    """

    def __init__(self, objects: Mapping[str, Any] | None = None) -> None:
        self.objects = dict(objects or {})
        self._load_data = lru_cache(maxsize=2)(partial(load_data, given=self.objects.get("dataset")))
        self._load_network = lru_cache(maxsize=2)(self._make_network)
        self._hashed: tuple[AnyDomains, bytes] | None = None

    def data(self, experiment: Experiment) -> AnyDomains:
        """Return the data of an experiment; of a public set without the images its model was trained on.

        A corrupted set may have to be fetched and made for minutes: weights that are missing are told before that.
        """
        model = model_for(experiment.dataset, experiment.model)
        dense = model in ARCHITECTURES and ARCHITECTURES[model].dense  # refused when the data are known
        if experiment.dataset in SETS and not self.objects and not dense:
            self.source(experiment, model)
        return self._load_data(*data_keys(experiment), self._trained(experiment))

    def public_images(self, experiment: Experiment, count: int, device: torch.device) -> Tensor:
        """Return the images that all clients know to who has no stream; load the data only if these come of them."""
        if experiment.dataset in SETS and experiment.source_images is None:
            return clean_images(experiment, count, device)
        return public_images(experiment, self.data(experiment), count, device)

    def _trained(self, experiment: Experiment) -> tuple[str, ...]:
        """Return the domains that the source model was trained on, as its card says."""
        public = PUBLIC.get(experiment.dataset)
        if public is None or self.objects.keys() & {"dataset", "model"}:
            return ()
        if experiment.model == "auto" and not public.dense and experiment.dataset not in USUAL:
            return ()  # refused when the model is chosen
        card = self.source(experiment, model_for(experiment.dataset, experiment.model, public.dense)).card
        return tuple(card.get("train", ())) if card.get("dataset") == experiment.dataset else ()

    def source(self, experiment: Experiment, model: str) -> Source:
        """Return where the weights of an experiment's model come from."""
        return find_source(experiment.dataset, model, experiment.weights, self.objects.get("model"))

    def network(self, experiment: Experiment, model: str, data: AnyDomains, device: torch.device) -> Network:
        """Return an experiment's model with outputs for the classes of the data."""
        kinds = (len(data.classes), device, data.dense, experiment.precision == "bf16")
        return self._load_network(experiment.dataset, model, experiment.weights, *kinds)

    def _make_network(
        self, dataset: str, model: str, weights: str, classes: int, device: torch.device, dense: bool, bf16: bool
    ) -> Network:
        given: nn.Module | None = self.objects.get("model")
        module = load_module(dataset, model, weights, classes) if given is None else given
        return Network(module, device, dense, bf16)

    def hash_images(self, data: AnyDomains) -> bytes:
        """Return a hash of the names, the classes and every image; the last one is kept."""
        if self._hashed is None or self._hashed[0] is not data:
            digest = hashlib.sha256(repr((data.names, data.classes)).encode())
            for name in data.names:
                digest.update(repr(data.images[name].shape).encode())
                digest.update(np.ascontiguousarray(data.images[name]).data)
            self._hashed = data, digest.digest()
        return self._hashed[1]
