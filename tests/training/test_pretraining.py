"""Source models: training, judging, writing."""

from __future__ import annotations

import json
from itertools import count

import numpy as np
import pytest

from fedctta.data.cache import Images
from fedctta.data.catalogue import load
from fedctta.data.corrupted import Domains
from fedctta.data.public import files_of, load_public
from fedctta.data.public_files import read_held
from fedctta.errors import UserError
from fedctta.models import build
from fedctta.models.zoo import load_model
from fedctta.training import pretraining
from fedctta.training.pretraining import pretrain
from fedctta.training.recipe import STEPS


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_weights_and_card_go_where_auto_finds_them(home):
    losses = []
    asked = {"model": "resnet8-w16", "dataset": "shapes", "recipe": "paper", "epochs": "2", "batch": "500", "seed": "3"}
    path, card = pretrain(asked, lambda done, total, loss: losses.append((done, total, loss)))
    assert path == home / "weights" / "resnet8-w16-shapes-paper.safetensors"
    assert [loss[:2] for loss in losses] == [(1, 2), (2, 2)]
    assert losses[1][2] < losses[0][2]
    assert card == json.loads(path.with_suffix(".json").read_text())
    assert card["seed"] == 3
    assert card["recipe"]["epochs"] == 2
    assert len(card["accuracy_by_corruption"]) == 15
    assert 0.1 < card["accuracy"] <= 1
    load_model("resnet8-w16", "shapes-c", 10, "paper")


def test_data_to_judge_by_that_are_missing_are_told_before_training(monkeypatch, tmp_path):
    (tmp_path / "fog.npy").write_bytes(b"")
    monkeypatch.setattr("fedctta.training.pretraining.train", None)
    with pytest.raises(UserError, match=r"has no gaussian_noise\.npy|has no labels\.npy"):
        pretrain({"model": "resnet8-w16", "dataset": "shapes", "folder": str(tmp_path)})


@pytest.fixture
def untested(monkeypatch):
    """Judge nothing, for tests of everything else."""
    monkeypatch.setattr("fedctta.training.pretraining.evaluate", lambda *args: 0.5)
    none = Domains(names=(), images={}, labels=np.zeros(0, np.int64), classes=(), notes=())
    monkeypatch.setattr("fedctta.training.pretraining.load_domains", lambda *args, folder: none)


def test_watching_tells_of_the_test_images_and_changes_nothing(monkeypatch, untested):
    shapes = load("shapes", "test")
    few = Images(shapes.images[:40], shapes.labels[:40], shapes.classes)
    monkeypatch.setattr("fedctta.training.pretraining.load", lambda *args: few)
    asked, told = {"model": "vit-w48", "dataset": "shapes", "epochs": "5", "batch": "20", "device": "cpu"}, []
    path, _ = pretrain({**asked, "watch": "2"}, on_accuracy=lambda *args: told.append(args))
    assert told == [(2, 0.5), (4, 0.5)]
    watched = path.read_bytes()
    path, _ = pretrain(asked, on_accuracy=lambda *args: told.append(args))
    assert len(told) == 2
    assert path.read_bytes() == watched


def test_what_clients_trained_together_is_named_and_told(home, monkeypatch, untested):
    shapes = load("shapes", "test")
    few = Images(shapes.images[:60], shapes.labels[:60], shapes.classes)
    monkeypatch.setattr("fedctta.training.pretraining.load", lambda *args: few)
    told = []
    asked = {"model": "resnet8-w16", "dataset": "shapes", "federation": "fedavg", "source_clients": "2", "rounds": "2"}
    path, card = pretrain({**asked, "batch": "10", "skew": "inf"}, lambda *args: told.append(args))
    assert path == home / "weights" / "resnet8-w16-shapes-fedavg.safetensors"
    assert [args[:2] for args in told] == [(1, 2), (2, 2)]
    assert card == json.loads(path.with_suffix(".json").read_text())
    assert (card["recipe"]["epochs"], card["recipe"]["batch"]) == (2, 10)
    assert card["federation"] == {
        "method": "fedavg",
        "source_clients": 2,
        "rounds": 2,
        "local_epochs": 1,
        "skew": "inf",
        "memory": "averaged",
    }


def test_recipe_and_federation_both_name_the_weights(home, monkeypatch, untested):
    hows = []
    monkeypatch.setattr(
        "fedctta.training.pretraining.train_federated", lambda *args, bf16: hows.append((args[3:5], bf16))
    )
    asked = {"model": "resnet8-w16", "dataset": "shapes", "federation": "fedavg", "recipe": "paper"}
    path, card = pretrain({**asked, "rounds": "3", "local_epochs": "4", "skew": "0.5", "precision": "bf16"})
    assert path.name == "resnet8-w16-shapes-paper-fedavg.safetensors"
    ((recipe, federation), bf16) = hows[0]
    assert (recipe.optimizer, recipe.epochs, federation.skew, bf16) == ("adam", 12, 0.5, True)
    assert recipe.batch == card["recipe"]["batch"] == 16  # 64 among ten clients, but no fewer than 16
    assert card["federation"]["skew"] == 0.5
    load_model("resnet8-w16", "shapes-c", 10, "paper-fedavg")


def test_alone_nothing_is_said_of_a_federation(monkeypatch, untested):
    monkeypatch.setattr("fedctta.training.pretraining.train", lambda *args, **_: None)
    path, card = pretrain({"model": "resnet8-w16", "dataset": "shapes", "federation": "none"})
    assert path.name == "resnet8-w16-shapes.safetensors"
    assert "federation" not in card


@pytest.mark.parametrize(
    ("weights", "words"),
    [("fedavg", "dataset=shapes federation=fedavg`"), ("paper-fedavg", "recipe=paper federation=fedavg`")],
)
def test_missing_weights_name_the_words_that_make_them(weights, words):
    with pytest.raises(UserError, match=words):
        load_model("resnet18", "shapes-c", 10, weights)


@pytest.mark.parametrize(("precision", "compiled"), [("float32", "yes"), ("bf16", "no")])
def test_the_precision_reaches_training_and_the_card(precision, compiled, monkeypatch, untested, tmp_path):
    asked = []
    monkeypatch.setattr(
        "fedctta.training.pretraining.train", lambda *args, bf16, compiled, **_: asked.append((bf16, compiled))
    )
    values = {"model": "resnet8-w16", "dataset": "shapes", "recipe": "augmix"}
    _, card = pretrain({**values, "precision": precision, "compile": compiled, "out": tmp_path / "w.safetensors"})
    assert asked == [(precision == "bf16", compiled == "yes")]
    assert (card["precision"], card["recipe"]["augment"]) == (precision, "augmix")


def test_a_whole_training_leaves_no_checkpoint_behind(monkeypatch, untested, tmp_path):
    place = tmp_path / "place.safetensors"

    def train(*args, stretches, **_):
        assert stretches.path == place
        place.touch()

    monkeypatch.setattr("fedctta.training.pretraining.train", train)
    values = {"model": "resnet8-w16", "dataset": "shapes", "checkpoint": place, "out": tmp_path / "w.safetensors"}
    pretrain(values)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.json", "w.safetensors"]


class Stop(Exception):
    """Ends a training from outside."""


def stop_in_second(done, total, loss):
    if done == 2:
        raise Stop


def test_a_checkpoint_is_of_one_training_on_the_same_data(pets, monkeypatch, tmp_path):
    monkeypatch.setattr("fedctta.training.stretches.monotonic", count(step=100).__next__)
    words = {"model": "resnet8-w16", "dataset": "pets", "train": "photo", "size": "32", "epochs": "3", "batch": "4"}
    words |= {"folder": str(pets), "checkpoint": str(tmp_path / "place.safetensors")}
    with pytest.raises(Stop):
        pretrain(words, stop_in_second)
    for change, told in (
        ({"train": "sketch"}, "train, images, labels"),
        ({"train": "all"}, "train, images, labels"),
        ({"size": "16"}, "size, images"),
        ({"precision": "bf16"}, "precision"),
        ({"model": "resnet8"}, "model, starting weights"),
        ({"seed": "1"}, "seed, starting weights"),
    ):
        with pytest.raises(UserError, match=rf"is of another training \(with other {told}\): give"):
            pretrain(words | change)
    with monkeypatch.context() as patch:
        part = pretraining.training_part
        patch.setattr(pretraining, "training_part", lambda *args: (part(*args)[0], 1 - part(*args)[1]))
        with pytest.raises(UserError, match=r"\(with other labels\)"):
            pretrain(words)
    epochs = []
    _, card = pretrain(words, lambda done, total, loss: epochs.append(done))
    assert epochs == [2, 3]
    assert card["train"] == ["photo"]


def test_a_model_learns_some_domains_and_is_judged_by_what_it_has_not_seen(pets, monkeypatch):
    learnt = []
    monkeypatch.setattr(
        "fedctta.training.pretraining.train", lambda module, images, labels, *_, **__: learnt.append(images)
    )
    words = {"model": "resnet8-w16", "dataset": "pets", "train": "photo", "size": "32", "folder": str(pets)}
    path, card = pretrain(words)
    assert path.name == "resnet8-w16-pets-photo.safetensors"
    held = read_held(files_of("pets"))
    assert [len(images) for images in learnt] == [20 - held["photo"]] == [card["images"]]
    assert (card["train"], card["size"], card["start"], card["classes"]) == (["photo"], 32, "random", ["cat", "dog"])
    assert list(card["accuracy_by_domain"]) == ["photo", "sketch"]
    assert card["accuracy"] == card["accuracy_by_domain"]["photo"]
    seen = {image.tobytes() for image in learnt[0]}
    shown = load_public("pets", size=32, trained=card["train"])
    assert not seen & {image.tobytes() for name in shown.names for image in shown.images[name]}


def test_a_started_model_takes_as_many_epochs_as_make_its_steps(pets, monkeypatch):
    recipes = []
    monkeypatch.setattr(
        "fedctta.training.pretraining.train", lambda module, images, labels, recipe, *_, **__: recipes.append(recipe)
    )
    monkeypatch.setattr(
        "fedctta.training.pretraining.build_started", lambda model, classes, *_: build("resnet8-w16", classes)
    )
    words = {"model": "efficientnet-lite0", "dataset": "pets", "train": "all", "size": "16", "batch": "4"}
    pretrain({**words, "folder": str(pets)})
    pretrain({**words, "epochs": "2"})
    steps = (40 - sum(read_held(files_of("pets")).values())) // 4
    assert [recipe.epochs for recipe in recipes] == [round(STEPS / steps), 2]


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ({"model": "efficientnet-lite0", "dataset": "pacs", "size": 64, "train": "photo"}, ["pacs 64", "start"]),
        (
            {"model": "resnet18", "dataset": "tiny-imagenet"},
            ["tiny-imagenet train", "tiny-imagenet test", "tiny-imagenet-c"],
        ),
        ({"model": "unet", "dataset": "scenes"}, []),  # drawn in memory
    ],
)
def test_what_a_training_reads_can_be_fetched_before(monkeypatch, words, read):
    asked = []
    monkeypatch.setattr(pretraining, "load_public", lambda name, folder, size: asked.append(f"{name} {size}"))
    monkeypatch.setattr(pretraining, "load", lambda name, split, folder: asked.append(f"{name} {split}"))
    monkeypatch.setattr(pretraining, "load_domains", lambda name, severity, folder: asked.append(name))
    monkeypatch.setattr(pretraining, "find_start", lambda start: asked.append("start"))
    pretraining.prepare(words)
    assert asked == read
