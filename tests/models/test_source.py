"""Which weights a run started from is in its record."""

from __future__ import annotations

import pytest

from fedctta import run
from fedctta.models import build, zoo

SMALL = {
    "dataset": "shapes-c",
    "domains": "fog",
    "stream": "iid",
    "clients": 2,
    "slots": 1,
    "batch": 4,
    "device": "cpu",
}
CARD = {"accuracy": 0.5, "seed": 7, "date": "2025-01-31", "recipe": {"epochs": 3}}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))


def played(**values):
    (record,) = run(**SMALL, adapter="none", **values)
    return record.settings["source"], [note for note in record.settings["notes"] if "source model" in note]


def test_the_packages_weights_are_told_with_their_card():
    source, notes = played()
    assert (source["weights"], source["file"]) == ("package", "resnet8-w16-shapes.safetensors")
    card = zoo.read_card(zoo.PACKAGED / "resnet8-w16-shapes.safetensors")
    assert (source["accuracy"], source["epochs"]) == (card["accuracy"], card["recipe"]["epochs"])
    assert notes == []


def test_weights_of_ones_own_are_used_told_and_noted():
    zoo.save_weights(build("resnet8-w16", seed=1), zoo.cached_path("resnet8-w16", "shapes"), CARD)
    source, notes = played()
    expected = {"weights": "cache", "file": "resnet8-w16-shapes.safetensors", "accuracy": 0.5, "seed": 7, "epochs": 3}
    assert source == expected | {"date": "2025-01-31"}
    assert notes == [
        "source model: your own training (seed 7, epochs 3, date 2025-01-31), in place of the package's weights of that"
        " name"
    ]


def test_weights_by_path_need_no_card_and_a_model_given_has_none(tmp_path):
    path = tmp_path / "w.safetensors"
    zoo.save_weights(build("resnet8-w16", seed=1), path, {})
    path.with_suffix(".json").unlink()
    assert played(weights=str(path)) == ({"weights": "elsewhere", "file": "w.safetensors"}, [])
    assert played(model=build("resnet8-w16", seed=1)) == ({}, [])


def test_a_comparison_of_weights_is_labelled_by_what_was_asked():
    result = run(**SMALL, adapter="bn", aggregator="local", weights=["auto", "fedavg"])
    table = result.table()
    assert [row.label for row in table.rows] == ["No-Adapt", "Local"]
    assert [column.rpartition(" / ")[2] for column in table.columns] == ["weights=auto", "weights=fedavg"]
