"""`fedctta device`: its words become a device's settings."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from fedctta.cli import app
from fedctta.cli.device import read_parameters
from fedctta.errors import UserError
from fedctta.fleet.device import start


def test_words_are_parameters_of_the_adapter():
    assert read_parameters("bn", ["bn.momentum=0.1"]) == {"momentum": "0.1"}


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("momentum=0.1", "write bn.parameter=value"),
        ("bn.momentum", "write bn.parameter=value"),
        ("tent.lr=1", "has no effect: the adapter is bn; drop it, or use --adapter tent"),
        ("bn.momentum=0.2", "bn.momentum is given twice"),
    ],
)
def test_words_without_effect_are_refused(word, said):
    with pytest.raises(UserError, match=said):
        read_parameters("bn", ["bn.momentum=0.1", word])


def test_every_option_reaches_the_device_under_its_name(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(start, "run_device", seen.append)
    given = {"model": "resnet8", "data": "stdin", "state": str(tmp_path), "batch": "7", "pace": "0.5", "name": "cam"}
    given |= {
        "weights": "shapes",
        "adapter": "tent",
        "min-batch": "3",
        "save-every": "4",
        "classes": "a,b",
        "socket": "d.sock",
    }
    words = [word for key, value in given.items() for word in (f"--{key}", value)]
    CliRunner().invoke(
        app, ["device", *words, "--lockstep", "--socket", "d.sock", "tent.lr=0.1"], catch_exceptions=False
    )
    (settings,) = seen
    assert (settings.model, settings.data, settings.state, settings.weights) == ("resnet8", "stdin", tmp_path, "shapes")
    assert (settings.adapter, settings.parameters) == ("tent", {"lr": "0.1"})
    assert (settings.batch, settings.pace, settings.name, settings.lockstep) == (7, 0.5, "cam", True)
    assert (settings.min_batch, settings.save_every, settings.classes) == (3, 4, "a,b")
