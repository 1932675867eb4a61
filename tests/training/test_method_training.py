"""Methods that learn at the source: from words to a file."""

from __future__ import annotations

import json

import pytest

from fedctta.adapters import adapters
from fedctta.adapters.atp import ATP
from fedctta.adapters.common.learnt import learnt_path
from fedctta.adapters.fedthe import FedTHE
from fedctta.core.network import Network
from fedctta.errors import UserError
from fedctta.models import build
from fedctta.models.zoo import load_model, save_weights
from fedctta.registry import parameter_types
from fedctta.training.learning import trainings
from fedctta.training.method_training import learn

FEW = {"dataset": "shapes", "device": "cpu", "clients": "3", "images": "10", "rounds": "2"}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def network():
    return Network(load_model("resnet8-w16", "shapes-c", 10))


@pytest.mark.parametrize(
    ("method", "options", "adapter"),
    [("atp", {"batch": "4"}, ATP(rates="auto")), ("fedthe", {"personal_steps": "2"}, FedTHE(heads="auto"))],
)
def test_what_is_learnt_goes_where_auto_finds_it(method, options, adapter, network):
    with pytest.raises(UserError, match="run `fedctta pretrain method="):
        adapter.check(network, 4)
    told = []
    path, card = learn({"method": method, **FEW, **options}, lambda *args: told.append(args))
    assert path == learnt_path(method, network)
    assert adapter.reads(network) == (path,)
    adapter.check(network, 4)
    assert card == json.loads(path.with_suffix(".json").read_text())
    assert (card["method"], card["model"], card["dataset"], card["weights"]) == (
        method,
        "resnet8-w16",
        "shapes",
        "auto",
    )
    assert [args[:2] for args in told] == [(1, 2), (2, 2)]


def test_a_path_and_weights_of_ones_own(tmp_path, home):
    out = tmp_path / "new" / "heads.safetensors"
    weights = tmp_path / "mine.safetensors"
    save_weights(build("resnet8-w16", 10, seed=5), weights, {})
    asked = {"method": "fedthe", **FEW, "model": "resnet8-w16", "weights": weights, "out": out, "personal_steps": 1}
    path, card = learn(asked)
    assert path == out
    assert card["weights"] == str(weights)
    assert not (home / "weights").exists()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"method": "tent"}, "unknown method that learns at the source 'tent'"),
        ({"method": "atp", "epochs": "3"}, "unknown option of method=atp 'epochs'"),
        ({"method": "fedthe", "share": "1"}, "unknown option of method=fedthe 'share'"),
        ({"method": "atp", "eta": "x"}, "eta=x is not a number"),
        ({"method": "atp", "corruptions": "fogg"}, "did you mean fog"),
        ({"method": "atp", "dataset": "shapes-c"}, "did you mean shapes"),
        ({"method": "atp", "out": "rates.pt"}, "must end in .safetensors"),
        ({"method": "atp", "model": "resnet9"}, "unknown model 'resnet9'"),
        ({"method": "atp", "model": "resnet18"}, "run `fedctta pretrain model=resnet18 dataset=shapes`"),
        ({"method": "atp", "weights": "fedagv"}, "no fedagv weights"),
    ],
)
def test_wrong_words_are_told_before_learning(values, said, monkeypatch):
    monkeypatch.setattr("fedctta.training.method_training.train_method", None)
    with pytest.raises(UserError, match=said):
        learn({"dataset": "shapes", **values})


def test_every_method_that_learns_says_what():
    learnt = {name: cls.learns for name, cls in adapters.classes().items() if cls.learns}
    assert learnt == {"atp": "rates", "fedthe": "heads"}
    assert learnt.keys() == trainings.classes().keys()
    assert all(parameter_types(adapters.classes()[name])[key] is str for name, key in learnt.items())  # names the file
