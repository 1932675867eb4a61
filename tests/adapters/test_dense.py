"""Adapters on a model that predicts every pixel: they work there, or are refused in one line."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from fedctta.adapters import adapters
from fedctta.core.clients import by_loop, by_vmap, stack
from fedctta.core.network import Network
from fedctta.errors import UserError
from fedctta.models import build

PER_PIXEL = {
    **{name: {} for name in ("none", "bn", "norm-alpha", "norm-ema", "dua", "tent", "shot", "bpa", "cola", "recall")},
    "sar": {"threshold": 1.0},
    **{name: {"threshold": 1.0, "margin": 2.0} for name in ("eata", "eta", "rdumb")},  # everything passes
    "grad": {"lr": 1e-3, "prox": 1.0, "moon": 1.0, "distil": 1.0},
    "atp": {"rates": "0.01"},
    "cotta": {"confidence": 0.0, "lr": 1e-5},  # at first the gradient is rounding, which Adam scales up
}
PER_IMAGE = {"t3a", "lame", "memo", "rotta", "cotta", "roid", "bbn", "fedthe", "fedicon"}
CLIENTS, BATCH, SIDE, CLASSES = 2, 3, 8, 4


class Pixels(nn.Module):
    """Ends in a convolution of single pixels, as most networks for masks do."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU())
        self.head = nn.Conv2d(5, CLASSES, 1)

    def forward(self, x):
        return self.head(self.body(x))


def networks():
    torch.manual_seed(0)
    return {"unet": Network(build("unet", CLASSES, seed=1), dense=True), "pixels": Network(Pixels().eval(), dense=True)}


def play(adapter, network, lift):
    """Adapt and predict twice; return the last logits and clients."""
    x = torch.rand(2, CLIENTS, BATCH, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(3))
    clients = stack(adapter.init(network), CLIENTS)
    with torch.no_grad():
        for batch in x:
            clients = lift(partial(adapter.adapt, network))(clients, batch)
            clients = lift(partial(adapter.receive, network))(clients, batch)
            logits = lift(partial(adapter.predict, network))(clients, batch)
    return logits, clients


def test_every_adapter_is_decided_on():
    assert set(PER_PIXEL) | PER_IMAGE == set(adapters.classes())


@pytest.mark.parametrize("model", ["unet", "pixels"])
@pytest.mark.parametrize("name", PER_PIXEL)
def test_an_adapter_works_on_pixels(name, model):
    network, adapter = networks()[model], adapters.create(name, PER_PIXEL[name])
    adapter.check(network, BATCH)
    vmapped, clients = play(adapter, network, by_vmap)
    looped, _ = play(adapter, network, by_loop)
    assert vmapped.shape == (CLIENTS, BATCH * SIDE * SIDE, CLASSES)
    assert vmapped.isfinite().all()
    torch.testing.assert_close(vmapped, looped, atol=1e-4, rtol=1e-3)
    moved = [(tensor != network.state[name]).any() for name, tensor in clients.own.items()]
    assert any(moved) or not moved


@pytest.mark.parametrize("name", sorted(PER_IMAGE))
def test_an_adapter_of_whole_images_is_refused_with_those_that_work(name):
    adapter = adapters.create(name)
    with pytest.raises(UserError, match=f"adapter {name!r} works on whole images") as refused:
        adapter.check(networks()["unet"], BATCH)
    told = str(refused.value)
    assert "\n" not in told
    named = set(told.partition("adapter none")[2].replace(" or ", ", ").split(", ")) | {"none"}
    assert {word for word in named if word} == set(PER_PIXEL) - {"cotta"}
    assert ("cotta.confidence=0" in told) == (name == "cotta")


def test_what_study_wants_works_on_pixels():
    network = networks()["pixels"]
    learnt = adapters.create("eata").study(network, torch.rand(4, 3, SIDE, SIDE), 2)
    assert all(tensor.isfinite().all() for tensor in learnt.values())
    assert any(tensor.any() for tensor in learnt.values())
