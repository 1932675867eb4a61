"""The model of a run, and whether it fits."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedctta.core.network import Network
from fedctta.data.masked import MaskedDomains, numbered
from fedctta.errors import UserError
from fedctta.models.source import Source
from fedctta.models.zoo import PACKAGED
from fedctta.runs.settings import Experiment
from fedctta.runs.source_models import (
    choose_model,
    find_source,
    fit_classes,
    import_model,
    is_untrained,
    load_module,
    notes_on_training,
    possible_lift,
)

MODULE = """
from torch import nn

def make():
    return nn.Linear(2, 3, bias=False)

made = make()
number = 3

def trained():
    model = nn.Linear(2, 3)
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.5)
    return model

def broken():
    model = nn.Linear(2, 3)
    nn.init.constant_(model.weight, float("nan"))
    nn.init.zeros_(model.bias)
    return model

def tensors():
    return make().state_dict()

def fail():
    raise ValueError("two\\nlines")
def lazy():
    return nn.LazyLinear(2)
def empty():
    return nn.Linear(2, 2, device="meta")
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A module of the user's own, in the current folder."""
    (tmp_path / "own_models.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_models", raising=False)
    return "own_models"


def test_a_model_is_made_or_taken_as_it_is(place):
    assert import_model(f"{place}:make").weight.shape == (3, 2)
    assert import_model(f"{place}:made") is sys.modules[place].made


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "cannot import model=own_models:nothing: AttributeError: .*; write module:function"),
        ("fail", "model=own_models:fail cannot be called: ValueError: two lines; name a function without arguments"),
        ("number", "model=own_models:number cannot be called: TypeError"),
        ("tensors", "model=own_models:tensors gives tensors, not a model"),
        ("lazy", "the model knows no shape of its tensors yet: run the model on one batch first"),
        ("empty", "the model is on the meta device, without values: build the model on a CPU"),
    ],
)
def test_what_is_no_model_is_told_in_one_line(place, name, said):
    with pytest.raises(UserError, match=said) as told:
        import_model(f"{place}:{name}")
    assert "\n" not in str(told.value)


def test_a_model_of_the_users_own_takes_weights_from_a_file(place, tmp_path):
    save_file({"weight": torch.arange(6.0).view(3, 2)}, tmp_path / "w.safetensors")
    loaded = load_module("shapes-c", f"{place}:make", "w.safetensors", 3)
    assert loaded.weight.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert find_source("shapes-c", f"{place}:make", "w.safetensors").path.name == "w.safetensors"
    assert find_source("shapes-c", f"{place}:make", "auto").path is None


def test_a_model_of_the_users_own_must_be_trained_unless_it_is_said(place):
    with pytest.raises(UserError, match=r"gives other numbers whenever it is called.*weights=FILE.*or weights=random"):
        load_module("domains", f"{place}:make", "auto", 3)
    one, two = (load_module("domains", f"{place}:make", "random", 3) for _ in range(2))
    assert one is not two
    assert torch.equal(one.weight, two.weight), "random weights are the same in every run"
    assert load_module("domains", f"{place}:trained", "auto", 3).bias.tolist() == [0.5, 0.5, 0.5]
    assert load_module("domains", f"{place}:broken", "auto", 3).weight.isnan().all()
    assert load_module("domains", f"{place}:made", "auto", 3) is sys.modules[place].made
    assert not load_module("shapes-c", "resnet8-w16", "random", 7).training
    assert find_source("shapes-c", "resnet8-w16", "random").told() == find_source("x", f"{place}:made", "auto").told()


def test_asking_whether_a_model_is_trained_changes_no_random_numbers(place):
    import_model(f"{place}:make")
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    assert is_untrained(sys.modules[place].made, lambda: import_model(f"{place}:make"))
    assert torch.rand(1) == expected


def test_the_source_of_a_named_model_is_its_file():
    source = find_source("shapes-c", "resnet8-w16", "fedavg")
    assert source.path == PACKAGED / "resnet8-w16-shapes-fedavg.safetensors"
    assert source.card["model"] == "resnet8-w16"
    assert find_source("shapes-c", "resnet8-w16", "auto", nn.Linear(1, 1)).path is None
    for weights in ("random", "no/such/file.pt"):
        with pytest.raises(UserError, match=f"^weights={weights} has no effect on a model given as an object: load"):
            find_source("shapes-c", "resnet8-w16", weights, nn.Linear(1, 1))


@pytest.fixture
def masked():
    """Two images of 4x4 pixels, whose classes are only numbers."""
    images, masks = np.zeros((2, 4, 4, 3), np.uint8), np.ones((2, 4, 4), np.uint8)
    return MaskedDomains(("d",), {"d": images}, {"d": masks}, numbered(2), ())


def test_the_model_follows_from_the_data_unless_it_is_named(domains, masked):
    assert choose_model(Experiment(dataset="shapes-c"), domains) == "resnet8-w16"
    with pytest.raises(UserError, match="data of your own have no usual model"):
        choose_model(Experiment(dataset="domains"), domains)
    assert choose_model(Experiment(dataset="masked"), masked) == "unet"
    assert choose_model(Experiment(dataset="shapes-c", model="resnet18"), domains) == "resnet18"
    assert choose_model(Experiment(model="mine:make"), domains) == "mine:make"


def test_a_model_for_other_data_is_refused_with_those_that_fit(domains, masked):
    with pytest.raises(UserError, match="model=unet does not fit data with one class an image: use model=resnet8 or"):
        choose_model(Experiment(model="unet"), domains)
    with pytest.raises(UserError, match="does not fit data with a class for every pixel: use model=unet or segformer"):
        choose_model(Experiment(model="resnet8"), masked)


def test_data_whose_classes_are_numbers_get_the_models(domains, masked):
    x = torch.zeros(2, 3, 4, 4)
    assert fit_classes(masked, x, torch.zeros(32, 5)).classes == numbered(5)
    assert fit_classes(domains, x, torch.zeros(2, 3)) is domains


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((2, 5), r"outputs of shape \[5\] and the data have 3 classes"),
        ((2, 3, 1), r"outputs of shape \[3, 1\]"),
        ((2, 1), "as for regression"),
        ((2,), "as for regression"),
    ],
)
def test_outputs_of_another_form_are_refused(domains, shape, said):
    with pytest.raises(UserError, match=said):
        fit_classes(domains, torch.zeros(2, 3, 8, 8), torch.zeros(shape))


def test_data_with_only_some_of_the_models_classes_are_told_where_to_name_all(domains):
    one = replace(domains, classes=("cat",), labels=None)
    with pytest.raises(UserError, match=r"the data have 1 class: choose a model that fits, or name all .*classes\.txt"):
        fit_classes(one, torch.zeros(2, 3, 8, 8), torch.zeros(2, 5))


def test_a_model_must_predict_every_pixel(masked):
    with pytest.raises(UserError, match="does not predict every pixel of images of 4x4 pixels"):
        fit_classes(masked, torch.zeros(2, 3, 4, 4), torch.zeros(2, 2))


class Branching(nn.Sequential):
    """Decides by a value, which vmap cannot."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(192, 3))

    def forward(self, x):
        return super().forward(x if x.mean() > 0 else -x)


def test_a_model_that_vmap_cannot_run_is_looped_unless_vmap_is_asked_for(tiny_network):
    x, branching = torch.rand(2, 3, 8, 8), Network(Branching())
    assert possible_lift(branching, x, "auto") == possible_lift(branching, x, "loop") == "loop"
    assert possible_lift(tiny_network, x, "auto") == "auto"
    with pytest.raises(UserError, match=r"lift=vmap cannot run this model: .*; use lift=loop"):
        possible_lift(branching, x, "vmap")


class Doubled(torch.autograd.Function):
    """Twice the gradient: vmap has no rule for it."""

    @staticmethod
    def forward(gradient):
        return 2 * gradient

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


class Doubling(torch.autograd.Function):
    """Twice x: vmap has a rule for it, and none for its gradient."""

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return Doubled.apply(gradient)

    @staticmethod
    def vmap(info, in_dims, x):
        return Doubling.apply(x), in_dims[0]


def test_a_model_whose_gradients_vmap_cannot_take_runs_in_a_loop():
    class Doubles(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(Doubling.apply(self.body(x)).mean((2, 3)))

    network, x = Network(Doubles()), torch.rand(2, 3, 8, 8)
    assert possible_lift(network, x, "auto") == "auto"
    assert possible_lift(network, x, "auto", descends=True) == "loop"
    network.differentiable = False  # refused when the method is checked
    assert possible_lift(network, x, "auto", descends=True) == "auto"


@pytest.mark.parametrize("descends", [False, True])
def test_a_model_that_vmap_can_only_run_for_gradients_runs_in_a_loop(descends):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.norm, self.head = nn.LSTM(6, 4, batch_first=True), nn.LayerNorm(4), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.norm(self.body(x)[0][:, -1]))

    assert possible_lift(Network(Recurrent()), torch.rand(2, 5, 6), "auto", descends) == "loop"


@pytest.mark.parametrize(
    ("made", "asked", "said"),
    [
        (
            (),
            "auto",
            "say which weights: `fedctta pretrain model=resnet8-w16 dataset=pets train=photo` makes",
        ),
        (("sketch", "photo+sketch"), "auto", "say which weights: there are weights=photo.sketch or weights=sketch; `"),
        ((), "sketch", "no weights sketch of resnet8-w16 for pets: `.* train=sketch` makes weights=sketch; or"),
        (("sketch",), "photo", "no weights photo of resnet8-w16 for pets: there are weights=sketch; `fedctta pretrain"),
    ],
)
def test_weights_for_a_public_set_that_are_not_there_are_told_with_those_that_are(pets, tmp_path, made, asked, said):
    (tmp_path / "home" / "weights").mkdir(parents=True)
    for name in made:
        (tmp_path / "home" / "weights" / f"resnet8-w16-pets-{name}.safetensors").touch()
    with pytest.raises(UserError, match=said):
        find_source("pets", "resnet8-w16", asked)


@pytest.mark.parametrize(
    ("card", "values", "said"),
    [
        ({"dataset": "pacs", "train": ["photo"], "size": 64}, {"size": 64}, []),
        ({"dataset": "pacs", "train": ["photo"], "size": 64}, {"size": 32}, ["of size 64, and these have 32"]),
        ({"dataset": "pets", "train": ["photo"]}, {}, ["the model was trained is not known: all are shown"]),
        ({}, {}, ["the model was trained is not known: all are shown"]),
        ({}, {"weights": "random"}, []),
        ({}, {"dataset": "shapes-c"}, []),
    ],
)
def test_what_is_not_known_of_a_training_is_told(card, values, said):
    notes = list(notes_on_training(Experiment(**{"dataset": "pacs", **values}), Source(None, card)))
    assert len(notes) == len(said)
    assert all(end in note for note, end in zip(notes, said, strict=True))
