"""Words become a training, or are refused before it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedctta.errors import UserError
from fedctta.models import ARCHITECTURES
from fedctta.training.dense import DENSE_RECIPE
from fedctta.training.plan import read_plan
from fedctta.training.recipe import BY_MODEL, FINE_TUNE, LAYER_NORM, RECIPES, STEPS, usual_recipe


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path))
    return tmp_path


def test_without_words_it_is_the_packaged_model(home):
    plan = read_plan({"device": "cpu"})
    assert (plan.model, plan.dataset, plan.recipe) == ("resnet8", "cifar10", RECIPES["standard"])
    assert (plan.federation, plan.precision, plan.dense) == (None, "float32", False)
    assert plan.path == home / "weights" / "resnet8-cifar10.safetensors"
    assert list(home.iterdir()) == []


def test_masks_are_learnt_by_their_own_model_and_recipe():
    plan = read_plan({"dataset": "masked", "folder": "there", "size": "64", "epochs": "3", "out": "w.safetensors"})
    assert plan.dense
    assert (plan.model, plan.folder, plan.size, plan.path) == ("unet", Path("there"), 64, Path("w.safetensors"))
    assert (plan.recipe.epochs, plan.recipe.lr) == (3, DENSE_RECIPE.lr)


def test_models_with_layer_norm_have_a_standard_recipe_of_their_own(home):
    plan = read_plan({"model": "vit-tiny", "epochs": "3", "watch": "2"})
    assert plan.recipe == replace(LAYER_NORM, epochs=3)
    assert (plan.path.name, plan.watch) == ("vit-tiny-cifar10.safetensors", 2)
    assert read_plan({"model": "vit-tiny", "recipe": "paper"}).recipe == RECIPES["paper"]
    tiny = read_plan({"model": "vit-tiny", "dataset": "tiny-imagenet", "compile": "yes"})
    assert (tiny.recipe, tiny.compiled) == (usual_recipe("vit-tiny", "tiny-imagenet"), True)
    assert BY_MODEL.keys() <= ARCHITECTURES.keys()


@pytest.mark.parametrize(("words", "batch"), [({}, 64), ({"batch": "10"}, 10)])
def test_source_clients_share_a_batch_unless_it_is_given(words, batch):
    plan = read_plan({"federation": "fedavg", "source_clients": "4", "rounds": "3", "local_epochs": "2", **words})
    assert (plan.method, plan.federation.source_clients) == ("fedavg", 4)
    assert (plan.recipe.epochs, plan.recipe.batch) == (6, batch)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"lr": "fast"}, "lr=fast is not a number"),
        ({"learning_rate": "1"}, "unknown key 'learning_rate'"),
        ({"dataset": "shapes-c"}, "did you mean shapes"),
        ({"recipe": "paperr"}, "did you mean paper"),
        ({"dataset": "shapes", "out": "weights.pt"}, "must end in .safetensors"),
        ({"dataset": "shapes", "optimizer": "sdg"}, "did you mean sgd"),
        ({"dataset": "shapes", "precision": "bf8"}, "unknown precision 'bf8': use one of bf16, float32"),
        ({"dataset": "shapes", "consistency": "12"}, "add augment=augmix"),
        ({"dataset": "shapes", "model": "resnext29-raw"}, "takes the weights of resnext29: train that one"),
        ({"dataset": "scenes", "recipe": "paper"}, "recipe=paper is for data with one class an image"),
        ({"dataset": "scenes", "watch": "1"}, "watch=1 is for data with one class an image"),
        ({"dataset": "scenes", "checkpoint": "c.safetensors"}, "checkpoint=c.safetensors is for data with one class"),
        ({"dataset": "shapes", "checkpoint": "c.pt"}, "checkpoint=c.pt must end in .safetensors"),
        (
            {"dataset": "shapes", "checkpoint": "c.safetensors", "federation": "fedavg"},
            "checkpoint is for training in one place",
        ),
        ({"dataset": "shapes", "watch": "-1"}, "watch=-1 must be a number of epochs"),
        ({"dataset": "shapes", "watch": "1", "federation": "fedavg"}, "watch=1 is for training in one place"),
        ({"dataset": "shapes", "compile": "maybe"}, "compile=maybe"),
        ({"dataset": "shapes", "compile": "yes", "federation": "fedavg"}, "compile is for training in one place"),
        ({"dataset": "scenes", "compile": "yes"}, "compile=yes is for data with one class an image"),
        ({"dataset": "shapes", "size": "8"}, "layout and size are for dataset=masked"),
        ({"dataset": "shapes", "model": "unet"}, "model=unet predicts every pixel"),
        ({"federation": "fedagv"}, "unknown federation 'fedagv': did you mean fedavg"),
        ({"dataset": "shapes", "rounds": "3"}, "rounds is for source clients .* add federation=fedavg"),
        ({"dataset": "shapes", "federation": "none", "skew": "1"}, "skew is for source clients"),
        ({"federation": "fedavg", "epochs": "3"}, "epochs are rounds x local_epochs"),
        ({"federation": "fedavg", "source_clients": "ten"}, "source_clients=ten is not a whole number"),
        ({"federation": "fedavg", "source_clients": "0"}, "source_clients=0 must be at least 1"),
        ({"federation": "fedavg", "skew": "-1"}, "skew=-1.0 must be above 0"),
        ({"federation": "fedavg", "memory": "frsh"}, "did you mean fresh"),
    ],
)
def test_wrong_words_are_told_before_training(values, said, home):
    with pytest.raises(UserError, match=said):
        read_plan(values)
    assert list(home.iterdir()) == []


def test_a_public_set_is_trained_on_by_domain(pets, home):
    plan = read_plan({"dataset": "pacs", "train": "sketch+photo", "size": "64"})
    assert (plan.model, plan.train, plan.size) == ("efficientnet-lite0", ("photo", "sketch"), 64)
    assert (plan.recipe, plan.until) == (FINE_TUNE, STEPS)
    assert plan.path.name == "efficientnet-lite0-pacs-photo+sketch.safetensors"
    assert read_plan({"dataset": "pacs", "train": "all"}).train == ("photo", "art_painting", "cartoon", "sketch")
    given = read_plan({"dataset": "pacs", "train": "photo", "epochs": "3", "lr": "0.1"})
    assert (given.recipe.epochs, given.recipe.lr, given.until) == (3, 0.1, None)
    random = read_plan({"dataset": "pets", "train": "photo", "model": "resnet8-w16"})
    assert (random.recipe, random.until) == (RECIPES["standard"], None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"dataset": "pacs"}, "has the domains photo, art_painting, .*: say on which to train, as train=photo"),
        ({"dataset": "pacs", "train": "foto"}, "unknown domain 'foto'"),
        ({"dataset": "shapes", "train": "photo"}, "train=photo is for .*pacs.*: drop it with shapes"),
        ({"dataset": "pacs", "train": "photo", "layout": "sites"}, "layout"),
        ({"dataset": "pacs", "train": "photo", "model": "unet"}, "predicts every pixel"),
    ],
)
def test_what_does_not_fit_a_public_set_is_refused(words, message):
    with pytest.raises(UserError, match=message):
        read_plan(words)


def test_watch_is_refused_where_it_would_tell_nothing():
    with pytest.raises(UserError, match=r"watch=2 is for sets with test images"):
        read_plan({"dataset": "pacs", "train": "photo", "watch": 2})


def test_series_have_a_model_and_a_recipe_of_their_own():
    plan = read_plan({"dataset": "watch", "train": "person-02"})
    assert (plan.model, plan.recipe.augment, plan.until) == ("conv1d", "none", 450)


@pytest.mark.parametrize(("dataset", "model"), [("watch", "resnet8"), ("pacs", "conv1d"), ("cifar10", "conv1d")])
def test_series_and_images_do_not_mix(dataset, model):
    with pytest.raises(UserError, match=f"model={model} reads .* and {dataset} has none: use model="):
        read_plan({"dataset": dataset, "model": model, **({} if dataset == "cifar10" else {"train": "all"})})
