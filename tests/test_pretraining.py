"""Source models: training, judging, writing."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedctta.data.corrupted import Domains
from fedctta.errors import UserError
from fedctta.models.zoo import load_model
from fedctta.pretraining import pretrain


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
    ],
)
def test_wrong_words_are_told_before_training(values, said, monkeypatch):
    monkeypatch.setattr("fedctta.pretraining.train", None)
    with pytest.raises(UserError, match=said):
        pretrain(values)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_the_precision_reaches_training_and_the_card(precision, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr("fedctta.pretraining.train", lambda *args, bf16: asked.append(bf16))
    monkeypatch.setattr("fedctta.pretraining.evaluate", lambda *args: 0.5)
    none = Domains(names=(), images={}, labels=np.zeros(0, np.int64), classes=(), notes=())
    monkeypatch.setattr("fedctta.pretraining.load_domains", lambda *args, folder: none)
    values = {"model": "resnet8-w16", "dataset": "shapes", "recipe": "augmix"}
    _, card = pretrain({**values, "precision": precision, "out": tmp_path / "w.safetensors"})
    assert asked == [precision == "bf16"]
    assert (card["precision"], card["recipe"]["augment"]) == (precision, "augmix")
