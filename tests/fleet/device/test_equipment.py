from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from fedctta.errors import UserError
from fedctta.fleet.device.equipment import (
    equip,
    find_weights,
    images_from,
    seed_of,
)
from fedctta.models import build


def test_a_model_of_the_zoo_comes_with_its_classes():
    found = equip("resnet8-w16", "shapes", "bn", 10, parameters={"momentum": "0.25"})
    assert found.adapter.momentum == 0.25
    assert "disc" in found.classes
    x = torch.rand(2, 3, 32, 32)
    assert found.network({}, x).logits.shape == (2, len(found.classes))
    assert torch.equal(found.network({}, x).logits, found.spare()({}, x).logits)
    assert find_weights("resnet8-w16", "auto") == find_weights("resnet8-w16", "auto", "shapes-c")
    assert equip("resnet8-w16", "auto", "bn", 10, classes=",".join("abcdefghij")).classes == tuple("abcdefghij")


def test_classes_are_named_in_a_file_or_by_however_long_a_list(tmp_path):
    (tmp_path / "names.txt").write_text("one\n\n two\n")
    assert equip("resnet8-w16", "auto", "bn", 10, classes=str(tmp_path / "names.txt")).classes == ("one", "two")
    names = tuple(f"class {k}" for k in range(1000))
    assert equip("resnet8-w16", "auto", "bn", 10, classes=",".join(names)).classes == names


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
    Image.fromarray(np.full((4, 4), 300, np.uint16)).save(tmp_path / "0.png")
    with pytest.raises(UserError, match="cannot be read as one batch: has more than 8 bits per value"):
        images_from(tmp_path, "eata", "cpu")(3)


def test_without_a_name_the_adapter_is_one_that_fits_the_model(tmp_path, monkeypatch, caplog):
    assert equip("resnet8-w16", "shapes", None, 10).adapter.name == "recall"
    assert not caplog.text
    (tmp_path / "plain.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(48, 3))"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "plain", raising=False)
    assert equip("plain:make", "random", None, 10).adapter.name == "none"
    assert "this model has none, so that it predicts without adapting" in caplog.text
