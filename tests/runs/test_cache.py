"""Data and models are loaded once, and what is given as an object takes the place of a name."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedctta.errors import UserError
from fedctta.models import build
from fedctta.models.zoo import save_weights
from fedctta.runs import datasets
from fedctta.runs.cache import Cache
from fedctta.runs.settings import Experiment

CPU = torch.device("cpu")


def test_data_and_models_are_loaded_once():
    cache, experiment = Cache(), Experiment(dataset="shapes-c", domains="fog")
    data = cache.data(experiment)
    assert cache.data(replace(experiment, seed=1, aggregator="fedavg")) is data
    network = cache.network(experiment, "resnet8-w16", data, CPU)
    assert cache.network(replace(experiment, seed=1), "resnet8-w16", data, CPU) is network
    assert cache.network(replace(experiment, precision="bf16"), "resnet8-w16", data, CPU) is not network


def test_the_last_two_are_kept(monkeypatch):
    load, asked = datasets.load_domains, []
    monkeypatch.setattr(datasets, "load_domains", lambda *a, **k: asked.append(k["names"]) or load(*a, **k))
    cache = Cache()
    for names in ("fog", "frost", "fog", "frost", "contrast", "fog"):
        cache.data(Experiment(dataset="shapes-c", domains=names))
    assert asked == [("fog",), ("frost",), ("contrast",), ("fog",)]


def test_images_that_all_know_are_those_of_a_run_and_need_no_corrupted_ones(monkeypatch):
    cache, experiment = Cache(), Experiment(dataset="shapes-c", domains="fog")
    known = datasets.public_images(experiment, cache.data(experiment), 4, CPU)
    monkeypatch.setattr(cache, "data", None)
    assert torch.equal(cache.public_images(experiment, 4, CPU), known)


def test_images_that_all_know_may_be_of_the_data(pets):
    cache, experiment = Cache(), Experiment(dataset="folders", folder=str(pets / "pictures"), size=8, source_images="4")
    assert cache.public_images(experiment, 4, CPU).shape == (4, 3, 8, 8)


def test_missing_weights_are_told_before_data_are_made(monkeypatch):
    monkeypatch.setattr(datasets, "load_domains", None)
    with pytest.raises(UserError, match="no weights of resnet18 for shapes: run `fedctta pretrain"):
        Cache().data(Experiment(dataset="shapes-c", model="resnet18"))


def test_objects_take_the_place_of_names(domains, tiny_module):
    cache, experiment = Cache({"dataset": domains, "model": tiny_module}), Experiment(dataset="domains", model="mine")
    assert cache.data(experiment).images == domains.images
    assert cache.source(experiment, "mine").path is None
    state = cache.network(experiment, "mine", domains, CPU).state
    assert all(torch.equal(state[name], tensor) for name, tensor in tiny_module.named_parameters())


def test_the_hash_is_of_every_image(domains):
    cache = Cache()
    before = cache.hash_images(domains)
    images = domains.images["d2"].copy()
    images[-1, -1, -1, -1] ^= 1
    assert cache.hash_images(replace(domains, images={**domains.images, "d2": images})) != before
    assert cache.hash_images(domains) == before == Cache().hash_images(domains)


def card(home, **values):
    (home / "weights").mkdir(parents=True)
    path = home / "weights" / "resnet8-w16-pets-photo.safetensors"
    save_weights(build("resnet8-w16", 2), path, {"dataset": "pets", **values})
    return Experiment(dataset="pets", size=32, model="resnet8-w16", weights="photo")


def test_a_public_set_is_shown_without_the_images_the_model_was_trained_on(pets, tmp_path):
    experiment = replace(card(tmp_path / "home", train=["photo"]), folder=str(pets))
    held = Cache().data(experiment).sizes[0]
    assert 0 < held < 20
    assert Cache().data(replace(experiment, folder=None)).sizes == (held, 20)
    assert Cache().data(replace(experiment, weights="random")).sizes == (20, 20)
    assert Cache({"model": build("resnet8-w16", 2)}).data(experiment).sizes == (20, 20)


def test_weights_of_other_data_hide_nothing(pets, tmp_path):
    experiment = replace(card(tmp_path / "home", train=["photo"], dataset="pacs"), folder=str(pets))
    assert Cache().data(experiment).sizes == (20, 20)
