"""What a newcomer may get wrong: one line, exit 2, and nothing lost or left behind."""

from __future__ import annotations

import sys

import numpy as np
import pytest

MODELS = """
import torch
from torch import nn


def make(outputs=3):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*body, nn.Linear(4, outputs))


def fail():
    raise ValueError("no\\nsuch file")


def listed():
    return [make()]


def tensors():
    return make().state_dict()


def untrained():
    seed = torch.randint(1000, ()).item()
    model = make()
    with torch.no_grad():
        model[0].weight += seed
    return model


def one_number():
    return make(1)


def no_axis():
    return nn.Sequential(make(1), nn.Flatten(0))
"""
FEW = ["stream=iid", "clients=2", "batch=4", "device=cpu", "-q"]


@pytest.fixture
def place(home, monkeypatch):
    """A folder with models and good arrays of 12 images of three classes in two domains."""
    (home / "their_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(home)
    monkeypatch.delitem(sys.modules, "their_models", raising=False)
    for name in ("a", "b"):
        save(home, name)
    return home


def save(home, name, side=8, count=12, labels=None):
    (home / "arrays").mkdir(exist_ok=True)
    images = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)
    np.savez(home / "arrays" / f"{name}.npz", images=images, labels=np.arange(count) % 3 if labels is None else labels)


def files(home):
    """Everything there is, apart from caches."""
    paths = (path for path in home.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path: path.read_bytes() for path in paths}


def refused(call, home, *words):
    """Return the one line with which a command is refused; nothing has changed."""
    before = files(home)
    code, _, told = call(*words)
    assert code == 2
    assert "Traceback" not in told
    assert files(home) == before
    (line,) = told.strip().splitlines()
    return line.removeprefix("fedctta: ")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"labels": np.full(12, 7)}, "the model gives outputs of shape [3] and the data have 8 classes"),
        ({"labels": np.arange(12) % 3 - 1}, "Domains.labels hold -1: give 0 to 2"),
        ({"labels": np.arange(12) % 3 * 1.0}, "Domains.labels of 'b' are float64 (12,): give whole numbers"),
        ({"labels": np.zeros(5, int)}, "domain 'b' has 12 images and 5 labels: give one each"),
        ({"count": 0}, "domain 'b' is empty"),
        ({"side": 9}, "domains have images of different sizes, 'a' (8, 8, 3) and 'b' (9, 9, 3)"),
    ],
)
def test_wrong_data(change, said, place, call):
    save(place, "b", **change)
    assert said in refused(call, place, "run", "dataset=arrays", "folder=arrays", "model=their_models:make", *FEW)


def test_a_domain_named_twice(place, call):
    words = ["run", "dataset=arrays", "folder=arrays", "domains=a+a", "model=their_models:make", *FEW]
    assert refused(call, place, *words) == "domains names a twice: name it once"


MODELS_REFUSED = [
    ("fail", "cannot be called: ValueError: no such file; name a function without arguments"),
    ("listed", "gives a list: it must give a torch.nn.Module"),
    ("tensors", "gives tensors, not a model: let it build one, and give them by weights=FILE"),
    ("untrained", "so it is not trained: add weights=FILE (.safetensors or .pt), or weights=random if that is meant"),
    ("one_number", "the model gives one number per image, as for regression: give a logit per class"),
    ("no_axis", "the model gives one number per image, as for regression: give a logit per class"),
    ("nothing", "cannot import model=their_models:nothing"),
]


@pytest.mark.parametrize(("name", "said"), MODELS_REFUSED)
def test_wrong_models(name, said, place, call):
    words = ["run", "dataset=arrays", "folder=arrays", f"model=their_models:{name}", *FEW]
    assert said in refused(call, place, *words)


@pytest.mark.parametrize(("name", "said"), MODELS_REFUSED)
def test_wrong_models_on_a_device(name, said, place, call):
    images = f"stream:dataset=arrays,folder={place}/arrays,stream=iid,clients=2"
    words = ["--model", f"their_models:{name}", "--data", images, "--state", "state", "--batch", "4", "-q"]
    assert said in refused(call, place, "device", *words)
    assert not (place / "state").exists()


def test_more_images_than_any_memory_holds(place, call):
    for name in ("a", "b"):
        save(place, name, side=32)
    words = ["dataset=arrays", "folder=arrays", "model=their_models:make", "stream=iid", "samples=overlap", "slots=1"]
    line = refused(call, place, "run", *words, "clients=100000", "batch=1000", "device=cpu", "-q")
    assert line.startswith("one round has 100,000,000 images, which take 1,229 GB of")
    assert line.endswith("use fewer clients or a smaller batch")


def test_other_words_neither_replace_nor_resume_what_is_there(place, call):
    words = ["run", "dataset=arrays", "folder=arrays", "model=their_models:make", "--out", "here", *FEW]
    assert call(*words)[0] == 0
    assert "here holds other runs" in refused(call, place, *words, "seed=1")
    assert "there is nothing to resume: use the same words" in refused(call, place, *words, "seed=1", "--resume")
    assert call(*words, "--resume")[0] == 0
