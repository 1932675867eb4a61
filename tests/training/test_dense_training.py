"""Source models for pixels: training and the card."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from fedctta.data import scenes
from fedctta.data.public import files_of
from fedctta.data.public_files import read_held
from fedctta.errors import UserError
from fedctta.models.zoo import load_model
from fedctta.training import dense_training
from fedctta.training.dense import DENSE_RECIPE
from fedctta.training.dense_training import train_dense_source
from fedctta.training.pretraining import pretrain
from fedctta.training.recipe import STEPS

ONCE = replace(DENSE_RECIPE, epochs=1)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def few(tmp_path, monkeypatch):
    """A handful of scenes, and a cache of their own."""
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))
    small = scenes.draw(12, 0)
    monkeypatch.setattr(scenes, "load", lambda split: small)


@pytest.fixture
def folder(tmp_path):
    random = np.random.default_rng(0)
    for site in ("one", "two"):
        for kind, shape, top in (("images", (8, 8, 3), 256), ("masks", (8, 8), 2)):
            place = tmp_path / "mine" / site / kind
            place.mkdir(parents=True)
            for k in range(10 if site == "one" else 4):
                Image.fromarray(random.integers(0, top, shape).astype(np.uint8)).save(place / f"{k}.png")
    return tmp_path / "mine"


def test_pretraining_on_scenes_goes_where_auto_finds_it():
    path, card = pretrain({"dataset": "scenes", "epochs": "1", "device": "cpu"})
    assert path.name == "unet-scenes.safetensors"
    assert list(card["miou_by_corruption"]) == list(scenes.SHIFTS)
    assert card["recipe"]["optimizer"] == "adam"
    assert card["drawings"] == scenes.VERSION
    assert 0 <= card["miou"] <= card["accuracy"] <= 1
    load_model("unet", "scenes", 5, str(path))


def test_of_a_folder_every_tenth_image_judges(folder):
    _, card = train_dense_source("unet", "masked", ONCE, CPU, folder=folder)
    assert list(card["miou_by_corruption"]) == ["one"]
    assert card["miou"] == card["miou_by_corruption"]["one"]
    assert len(card["classes"]) == 2


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model": "resnet8"}, "model=resnet8 gives one prediction an image.*: use model=unet or segformer"),
        ({"model": "unett"}, "did you mean unet"),
        ({"recipe": "paper"}, "recipe=paper is for data with one class an image"),
        ({"federation": "fedavg"}, "federation=fedavg is for data with one class"),
        ({"precision": "bf16"}, "precision=bf16 is for data with one class"),
        ({"dataset": "masked"}, "add folder=PATH"),
        ({"dataset": "masked", "size": "large"}, "size=large is not a whole number"),
        ({"dataset": "shapes", "size": "8"}, "layout and size are for dataset=masked"),
    ],
)
def test_what_cannot_be_trained_is_told(values, said):
    with pytest.raises(UserError, match=said):
        pretrain({"dataset": "scenes", **values})


def test_a_folder_too_small_to_judge_by_is_told(folder):
    with pytest.raises(UserError, match="no domain has 10 images"):
        train_dense_source("unet", "masked", ONCE, CPU, folder=folder, domains="two")


def test_a_site_of_a_public_set_is_learnt_and_judged_by_what_was_not_seen(eyes, monkeypatch):
    learnt = []

    def train(module, images, masks, recipe, *_):
        learnt.append((images, recipe))

    monkeypatch.setattr(dense_training, "train_dense", train)
    words = {"dataset": "eyes", "train": "a", "size": "16", "folder": str(eyes)}
    path, card = pretrain(words)
    images, recipe = learnt[0]
    held = read_held(files_of("eyes"))["a"]
    assert path.name == "unet-eyes-a.safetensors"
    assert (len(images), recipe.epochs) == (12 - held, STEPS)
    assert (card["train"], card["size"], card["classes"]) == (["a"], 16, ["background", "vessel"])
    assert list(card["miou_by_corruption"]) == ["b", "a"]
    assert card["miou"] == card["miou_by_corruption"]["a"]
    assert pretrain({**words, "epochs": "2"})[1]["recipe"]["epochs"] == 2
