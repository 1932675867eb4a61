"""Runs on images of any number of channels, on series and on tables."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedctta.adapters import adapters
from fedctta.aggregators import aggregators
from fedctta.data.domains import Domains
from fedctta.errors import UserError
from fedctta.runs.experiment import run

READ = []  # beyond copies of the network


class Recording(nn.Module):
    """A small network that keeps what it reads."""

    def __init__(self, body: nn.Module, features: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(features, 3)

    def forward(self, x):
        if not torch._C._functorch.is_batchedtensor(x):
            READ.append(x.detach().clone())
        return self.head(self.body(x).flatten(1))


def network(kind):
    torch.manual_seed(0)
    READ.clear()
    norm = {"table": nn.BatchNorm1d(5), "series": nn.BatchNorm1d(4)}.get(kind, nn.BatchNorm2d(4))
    pool = nn.AdaptiveAvgPool2d(1)
    body = {
        "table": lambda: norm,
        "series": lambda: nn.Sequential(nn.Conv1d(2, 4, 3), norm, nn.AdaptiveAvgPool1d(1)),
        "grey": lambda: nn.Sequential(nn.Conv2d(1, 4, 3), norm, pool),
        "many": lambda: nn.Sequential(nn.Conv2d(6, 4, 3), norm, pool),
        "float": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), norm, pool),
    }[kind]()
    return Recording(body, 5 if kind == "table" else 4).eval()


SHAPES = {"table": (5,), "series": (2, 9), "grey": (7, 8), "many": (7, 8, 6), "float": (3, 7, 8)}


def make(kind):
    random = np.random.default_rng(0)
    bytes_ = kind in ("grey", "many")

    def draw(n):
        shape = (n, *SHAPES[kind])
        return random.integers(0, 256, shape, np.uint8) if bytes_ else random.normal(size=shape).astype(np.float32)

    images = {"a": draw(9), "b": draw(14)}
    labels = {name: random.integers(0, 3, len(array)) for name, array in images.items()}
    return Domains(("a", "b"), images, labels, ("x", "y", "z"))


def play(kind, **values):
    usual = {"stream": "iid", "clients": 2, "batch": 3, "device": "cpu", "lift": "loop"}
    return run(**{"dataset": make(kind), "model": network(kind), **usual, **values})


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("lift", ["loop", "vmap"])
def test_any_input_runs(kind, lift):
    (record,) = play(kind, adapter="bn", aggregator="fedctta", lift=lift, retention=4)
    assert record.class_seen.sum() == 23


@pytest.mark.parametrize("kind", ["table", "series", "float"])
def test_floats_reach_the_model_unchanged(kind):
    data = make(kind)
    play(kind, dataset=data, adapter="none")
    known = {image.tobytes() for array in data.images.values() for image in array}
    read = [image.numpy().tobytes() for x in READ for image in x]
    assert read
    assert set(read) <= known


def test_grey_pictures_are_scaled():
    play("grey", adapter="none")
    assert READ
    assert all(x.shape[1:] == (1, 7, 8) and x.min() >= 0 and x.max() <= 1 for x in READ)


@pytest.mark.parametrize("kind", ["table", "grey"])
def test_methods_for_colour_pictures_are_refused_in_one_line(kind):
    for key, registry in (("adapter", adapters), ("aggregator", aggregators)):
        only = [name for name, cls in registry.classes().items() if cls.pictures]
        assert only
        for name in only:
            said = rf"^{key} {name} works on colour pictures and an image of these data is \w+ \[.*\]: use {key} "
            with pytest.raises(UserError, match=said):
                play(kind, **{key: name})


@pytest.mark.parametrize("kind", ["series", "float", "grey"])
@pytest.mark.parametrize("lift", ["loop", "vmap"])
def test_methods_that_look_take_images_and_series(kind, lift):
    for methods in ({"adapter": "recall", "aggregator": "recall"}, {"adapter": "bn", "aggregator": "kin"}):
        (record,) = play(kind, **methods, lift=lift)
        assert record.class_seen.sum() > 0


def test_methods_that_look_refuse_tables():
    for key, name in (("adapter", "recall"), ("aggregator", "kin")):
        said = rf"^{key} {name} looks at images or series and an image of these data is float \[.*\]: use {key} "
        with pytest.raises(UserError, match=said):
            play("table", **{key: name})


def test_floats_with_channels_last_do_not_fit_and_that_is_said():
    data = Domains(("a",), {"a": np.zeros((4, 7, 8, 3), np.float32)})
    with pytest.raises(UserError, match=r"cannot take images of 7x8x3.*; choose one that fits"):
        play("float", dataset=data)


@pytest.mark.parametrize("lift", ["loop", "vmap"])
def test_the_model_as_it_is_stays_so_when_a_layer_has_two_names(lift):
    module = network("float")
    module.shortcut = module.body[1]
    keys = {"dataset": make("float"), "model": module, "stream": "iid", "clients": 2, "batch": 4, "lift": lift}
    alone, after = (run(adapter=adapter, aggregator="local", **keys) for adapter in ("none", ["bn", "none"]))
    np.testing.assert_array_equal(alone.records[0].entropy, after.records[1].entropy)


def test_default_streams_take_few_domains_and_record_their_clusters():
    (record,) = play("grey", stream="niid", clients=4, adapter="bn", aggregator="local")
    assert record.settings["niid"]["clusters"] == 2
    with pytest.raises(UserError, match=r"^niid.clusters=3 must be between 1 and 2 .*: give a number"):
        play("grey", stream="niid", clients=4, adapter="bn", aggregator="local", **{"niid.clusters": 3})
