from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar, get_type_hints

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from fedctta.adapters import Adapter, adapters
from fedctta.cli.device import device
from fedctta.errors import UserError
from fedctta.fleet.device.equipment import (
    equip,
    find_weights,
    free_running_parameters,
    images_from,
    parameters_for,
    seed_of,
)
from fedctta.models import build
from fedctta.registry import defaults


def test_a_model_of_the_zoo_comes_with_its_classes():
    found = equip("resnet8-w16", "shapes", "bn", 10, parameters={"momentum": "0.25"})
    assert found.adapter.momentum == 0.25
    assert "disc" in found.classes
    x = torch.rand(2, 3, 32, 32)
    assert found.network({}, x).logits.shape == (2, len(found.classes))
    assert torch.equal(found.network({}, x).logits, found.spare()({}, x).logits)
    assert find_weights("resnet8-w16", "auto") == find_weights("resnet8-w16", "auto", "shapes-c")
    assert equip("resnet8-w16", "auto", "bn", 10, classes=",".join("abcdefghij")).classes == tuple("abcdefghij")


def test_the_number_of_classes_is_read_from_the_file(tmp_path):
    module = build("resnet8-w16", 7)
    state = {n: t for n, t in module.state_dict().items() if not n.endswith("num_batches_tracked")}
    save_file(state, tmp_path / "seven.safetensors")
    found = equip("resnet8-w16", str(tmp_path / "seven.safetensors"), "bn", 10)
    assert found.network({}, torch.rand(2, 3, 32, 32)).logits.shape == (2, 7)
    assert found.classes == ()


def test_a_model_of_the_users_own(tmp_path, monkeypatch):
    text = (
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 3))"
    )
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    x = torch.rand(2, 3, 4, 4)
    with pytest.raises(UserError, match="so it is not trained: add weights=FILE"):
        equip("mine:make", "auto", "bn", 10)
    random = equip("mine:make", "random", "bn", 10)
    assert random.network({}, x).logits.shape == (2, 3)
    assert torch.equal(random.network({}, x).logits, random.spare()({}, x).logits)
    save_file({n: t + 1 for n, t in random.network.state.items()}, tmp_path / "mine.safetensors")
    filled = equip("mine:make", str(tmp_path / "mine.safetensors"), "bn", 10)
    assert torch.equal(filled.network.state["2.bias"], random.network.state["2.bias"] + 1)
    with pytest.raises(UserError, match="is no file"):
        equip("mine:make", "cifar10", "bn", 10)


@pytest.mark.parametrize(
    ("model", "weights", "adapter", "said"),
    [
        ("resnet9", "auto", "bn", "did you mean"),
        ("nowhere:make", "auto", "bn", "cannot import"),
        ("resnet8-w16", "imagenet", "bn", "no weights of resnet8-w16 for imagenet"),
        ("resnet8-w16", "nowhere.safetensors", "bn", "no weights at nowhere"),
        ("resnet8-w16", "shapes", "bm", "unknown adapter"),
        ("unet", "scenes", "bn", "predicts every pixel"),
    ],
)
def test_what_does_not_exist_is_told(model, weights, adapter, said):
    with pytest.raises(UserError, match=said):
        equip(model, weights, adapter, 10)
    with pytest.raises(UserError, match="batch=2 or more"):
        equip("resnet8-w16", "shapes", "bn", 1)


def test_no_two_devices_draw_the_same_chance():
    assert seed_of("device-0") != seed_of("device-1")


def test_images_of_the_source_come_from_a_folder(tmp_path):
    with pytest.raises(UserError, match="--source-images"):
        images_from(None, "eata", "cpu")(2)
    for k in range(3):
        Image.fromarray(np.full((4, 4, 3), k, np.uint8)).save(tmp_path / f"{k}.png")
    assert images_from(tmp_path, "eata", "cpu")(2).shape == (2, 3, 4, 4)
    with pytest.raises(UserError, match="has 3 images"):
        images_from(tmp_path, "eata", "cpu")(4)


def test_free_running_a_download_outlives_the_next_batch_by_default():
    x = torch.rand(4, 3, 32, 32)
    gains = {}
    for lockstep in (True, False):
        kit = equip("resnet8-w16", "shapes", "bn", 4, parameters=parameters_for("bn", {}, lockstep))
        client = kit.adapter.init(kit.network)
        other = client._replace(own={name: 2 * tensor + 1 for name, tensor in client.own.items()})
        with torch.no_grad():
            alone, helped = (kit.adapter.adapt(kit.network, start, x).own for start in (client, other))
        gains[lockstep] = any(not torch.equal(alone[name], helped[name]) for name in alone)
    assert gains == {True: False, False: True}
    assert parameters_for("bn", {"momentum": "1"}, lockstep=False) == {"momentum": "1"}
    assert parameters_for("tent", {}, lockstep=False) == {}
    assert parameters_for("elsewhere", {"rate": 1}, lockstep=False) == {"rate": 1}


def test_an_adapter_of_ones_own_says_what_it_needs_where_nobody_waits(monkeypatch):
    @dataclass(frozen=True)
    class Slow(Adapter):
        name: ClassVar[str] = "slow"
        free_running: ClassVar[Mapping[str, Any]] = {"rate": 0.1, "steps": 2}
        rate: float = 1.0
        steps: int = 1

    monkeypatch.setitem(adapters._classes, "slow", Slow)
    assert parameters_for("slow", {"steps": 3}, lockstep=False) == {"rate": 0.1, "steps": 3}
    assert parameters_for("slow", {"steps": 3}, lockstep=True) == {"steps": 3}
    assert free_running_parameters() == "for bn: bn.momentum=0.3; for slow: slow.rate=0.1 slow.steps=2"


@pytest.mark.parametrize("name", adapters.classes())
def test_parameters_where_nobody_waits_are_the_adapters(name):
    adapters.create(name, adapters.classes()[name].free_running)


def test_the_command_says_what_the_default_adapter_has_where_nobody_waits():
    said = get_type_hints(device, include_extras=True)["adapter"].__metadata__[0].help
    name = signature(device).parameters["adapter"].default
    cls = adapters.classes()[name]
    (key, value), *_ = cls.free_running.items()
    assert said.endswith(f"Without --lockstep {name} has {name}.{key}={value}, not {defaults(cls)[key]:g}.")
