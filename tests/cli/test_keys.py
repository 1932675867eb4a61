"""`fedctta keys` and `fedctta run --help` say what can be set."""

from __future__ import annotations

import doctest
import re

import pytest
from typer.testing import CliRunner

from fedctta.adapters import adapters
from fedctta.aggregators import aggregators
from fedctta.cli import app, console
from fedctta.cli import keys as command
from fedctta.cli.keys import allowed
from fedctta.data.corrupted import SETS
from fedctta.data.dense import DENSE
from fedctta.data.mask_layouts import LAYOUTS
from fedctta.data.own import OWN
from fedctta.data.public_sets import PUBLIC
from fedctta.errors import UserError
from fedctta.keys import ABOUT, DEFAULTS, KEYS
from fedctta.models import ARCHITECTURES
from fedctta.registry import parameter_types
from fedctta.sampling import samplers
from fedctta.streams import schedules


def told(*words):
    done = CliRunner().invoke(app, [*words])
    if isinstance(done.exception, UserError):
        raise done.exception
    assert done.exit_code == 0
    return done.output


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setattr(console.out, "width", 300)  # the environment counts only when the console is made


def lines(text):
    """Return the words of every line, by the first of them."""
    return {line.split()[0]: " ".join(line.split()) for line in text.splitlines() if line.split()}


def test_the_example_in_the_docstring():
    assert doctest.testmod(command) == (0, 1)


@pytest.mark.parametrize("words", [["run", "--help"], ["keys"]])
def test_every_key_is_listed_with_its_default_and_its_line(words):
    listed = lines(told(*words))
    for key in KEYS:
        default = "none" if DEFAULTS[key] is None else DEFAULTS[key]
        line = f"{key}={default} {ABOUT[key]}"
        assert listed[f"{key}={default}"] == (line if words[0] == "run" else f"{line} {allowed(key)}")


def test_run_help_keeps_its_options():
    text = told("run", "--help")
    for option in ("--out", "--json", "--resume", "--jobs", "--quiet"):
        assert option in text


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("adapter", adapters.classes()),
        ("aggregator", aggregators.classes()),
        ("stream", schedules.classes()),
        ("samples", samplers.classes()),
        ("dataset", {*SETS, *PUBLIC, *DENSE, *OWN}),
        ("model", {"auto", *ARCHITECTURES}),
        ("layout", {"auto", *LAYOUTS}),
        ("robust", ("none", "check", "cap", "clip", "median", "trimmed")),
    ],
)
def test_a_key_tells_the_values_it_takes(key, names):
    first, default, values = told("keys", key).splitlines()
    assert first == f"{key}: {ABOUT[key]}"
    assert default == f"default: {DEFAULTS[key]}"
    found = re.split(", | or ", values.removeprefix("allowed: "))
    assert set(names) <= set(found)
    assert len(set(found) - set(names)) == (key == "model")  # one of your own


@pytest.mark.parametrize(
    ("key", "kind", "default", "values"),
    [
        ("fedctta.temperature", "aggregator", "1.0", "a number above 0"),
        ("fedctta.samples", "aggregator", "none", "a whole number from 1 on, or none"),
        ("fedctta.ema", "aggregator", "0.9", "a number from 0 to below 1"),
        ("fedctta.squash", "aggregator", "false", "true or false"),
        ("dirichlet.delta", "samples", "0.1", "a number above 0, or inf"),
        ("bn.momentum", "adapter", "1.0", "a number above 0, up to 1"),
        ("niid.clusters", "stream", "4", "a whole number from 1 on"),
    ],
)
def test_a_dotted_key_tells_the_methods_parameter(key, kind, default, values):
    first, second, third = told("keys", key).splitlines()
    assert first.startswith(f"{key}: parameter of {kind}={key.partition('.')[0]}. ")
    assert (second, third) == (f"default: {default}", f"allowed: {values}")


def test_a_method_tells_all_its_parameters():
    text = told("keys", "fedctta")
    assert text.startswith("aggregator=fedctta: Weight peers")
    listed = [line.split()[0] for line in text.splitlines() if line.startswith("fedctta.")]
    assert [word.partition("=")[0] for word in listed] == [
        f"fedctta.{name}" for name in parameter_types(aggregators.classes()["fedctta"])
    ]
    assert "no parameters" in told("keys", "fedavg")


def test_an_adapter_and_an_aggregator_of_one_name_are_both_told():
    text = told("keys", "cola")
    assert "adapter=cola: " in text
    assert "aggregator=cola: " in text
    assert told("keys", "cola.vectors").startswith("cola.vectors: parameter of adapter=cola. ")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("sed", "unknown key or method 'sed': did you mean .*seed"),
        ("fedctt.ema", "unknown method 'fedctt': did you mean .*fedctta"),
        ("fedctta.temprature", "unknown parameter of fedctta 'temprature': did you mean temperature"),
        ("fedavg.x", "fedavg has no parameters"),
    ],
)
def test_what_does_not_exist_is_told(key, message):
    with pytest.raises(UserError, match=message):
        told("keys", key)
