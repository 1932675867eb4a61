"""From labelled images to a file the adapter works with."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedctta.adapters.atp import ATP
from fedctta.adapters.fedthe import FedTHE
from fedctta.errors import UserError
from fedctta.training.learning import Sharing, read_training, train_method, trainings

LABELS = np.arange(60) % 3
IMAGES = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)
SMALL = {"clients": "5", "images": "8", "rounds": "2"}


@pytest.mark.parametrize(
    ("name", "options", "adapter"),
    [
        ("atp", {"batch": "4", "limit": "0.5"}, lambda path: ATP(rates=path)),
        ("fedthe", {"steps": 2}, lambda path: FedTHE(heads=path, views=2)),
    ],
)
def test_what_is_learnt_serves_the_adapter(tiny_network, tmp_path, name, options, adapter):
    tensors, card = train_method(name, tiny_network, IMAGES, LABELS, {**SMALL, **options})
    path = tmp_path / "learnt.safetensors"
    save_file(tensors, path)
    client = adapter(str(path))
    client.check(tiny_network, 4)
    x = torch.rand(4, 3, 8, 8)
    after = client.adapt(tiny_network, client.init(tiny_network), x)
    assert client.predict(tiny_network, after, x).isfinite().all()
    assert card["method"] == name
    assert card["training"]["clients"] == 5
    assert len(card["losses"]) == 2
    json.dumps(card, allow_nan=False)


def test_the_same_options_give_the_same_rates(tiny_network):
    first, again, other = (
        train_method("atp", tiny_network, IMAGES, LABELS, {**SMALL, "batch": 4, "seed": seed})[0] for seed in (0, 0, 1)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedicon", {}, "unknown method that learns at the source 'fedicon'"),
        ("atp", {"epochs": 3}, "unknown option of method=atp 'epochs'"),
        ("fedthe", {"lr": "fast"}, "lr=fast is not a number"),
    ],
)
def test_refuses_what_it_does_not_know(tiny_network, name, options, message):
    with pytest.raises(UserError, match=message):
        train_method(name, tiny_network, IMAGES, LABELS, options)


def test_defaults_are_the_papers_where_they_give_them():
    atp = read_training("atp", {})
    assert (atp.rounds, atp.batch, atp.share) == (200, 20, 0.25)
    assert atp.skew == math.inf


def test_a_method_of_ones_own_learns_too(tiny_network, monkeypatch):
    @dataclass(frozen=True)
    class Brightness(Sharing):
        """How bright images of the source are."""

        name: ClassVar[str] = "brightness"
        scale: float = 1.0

        def learn(self, network, shards, on_round=None):
            return {"brightness": torch.tensor(self.scale * shards.images.mean())}, [0.0]

    monkeypatch.setitem(trainings._classes, "brightness", Brightness)
    options = {"scale": "2", "corruptions": "none", "clients": "1", "images": "60"}
    tensors, card = train_method("brightness", tiny_network, IMAGES, LABELS, options)
    assert tensors["brightness"].item() == pytest.approx(2 * IMAGES.mean())
    assert (card["method"], card["training"]["scale"]) == ("brightness", 2.0)
    with pytest.raises(UserError, match="unknown method that learns at the source 'brightnes': did you mean brightnes"):
        read_training("brightnes", {})
