"""`fedctta pretrain`, and that `fedctta run` uses what it made."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from fedctta.cli import app

QUICK = ["dataset=shapes-c", "domains=fog+contrast", "niid.clusters=2", "clients=4", "slots=2", "device=cpu"]


def test_pretraining_writes_weights_and_a_card(home):
    words = ["pretrain", "model=resnet8-w16", "dataset=shapes", "epochs=1", "batch=1000", "out=mine.safetensors"]
    told = CliRunner().invoke(app, words, catch_exceptions=False).output
    assert "clean accuracy" in told
    card = json.loads((home / "mine.json").read_text())
    assert card["recipe"]["epochs"] == 1
    assert len(card["accuracy_by_corruption"]) == 15
    words = ["run", *QUICK, "weights=mine.safetensors", "-q"]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0


def test_what_was_trained_is_what_the_next_command_uses(home, monkeypatch):
    """The two commands of docs/pretraining.md, without the training itself."""
    monkeypatch.setattr("fedctta.training.pretraining.train_federated", lambda *args, bf16: None)
    monkeypatch.setattr("fedctta.training.pretraining.evaluate", lambda *args: 0.25)
    words = ["pretrain", "model=resnet8-w16", "dataset=shapes", "federation=fedavg", "source_clients=10"]
    told = CliRunner().invoke(app, words, catch_exceptions=False).output
    assert "use them with weights=fedavg" in told
    words = ["run", *QUICK, "weights=fedavg", "--json", "numbers.json", "-q"]
    told = CliRunner().invoke(app, words, catch_exceptions=False).output
    assert "your own training" in told
    source = json.loads((home / "numbers.json").read_text())["runs"][0]["source"]
    assert (source["weights"], source["file"]) == ("cache", "resnet8-w16-shapes-fedavg.safetensors")
    assert source["accuracy"] == 0.25


def test_a_method_learns_and_its_adapter_finds_what_it_learnt(home):
    words = ["pretrain", "method=atp", "dataset=shapes", "clients=4", "images=10", "batch=4", "rounds=2", "device=cpu"]
    told = CliRunner().invoke(app, words, catch_exceptions=False).output
    (path,) = (home / "home" / "weights").glob("atp-*.safetensors")
    assert f"rates: {path}" in told
    assert "adapter=atp atp.rates=auto" in told
    told = CliRunner().invoke(app, [*words, "out=mine.safetensors"], catch_exceptions=False).output
    assert "atp.rates=mine.safetensors" in told
    for rates in ("auto", "mine.safetensors"):
        run = ["run", *QUICK, "adapter=atp", f"atp.rates={rates}", "aggregator=local", "-q"]
        assert CliRunner().invoke(app, run, catch_exceptions=False).exit_code == 0


def test_a_public_set_from_a_folder_to_results(pets, monkeypatch):
    words = ["pretrain", "model=resnet8-w16", "dataset=pets", "train=photo", "size=32", f"folder={pets}", "epochs=1"]
    told = CliRunner().invoke(app, [*words, "batch=8"], catch_exceptions=False).output
    assert "accuracy on held-out images of photo" in told
    assert "use them with weights=photo)" in told
    run = ["run", "dataset=pets", "size=32", "model=resnet8-w16", "weights=photo", "clients=2", "batch=2", "device=cpu"]
    told = CliRunner().invoke(app, [*run, "stream=iid", "adapter=bn,eata", "aggregator=local"], catch_exceptions=False)
    assert told.exit_code == 0
    assert "the model was trained on photo: shown are the held-out images" in " ".join(told.output.split())
