"""What is read from source is what the registries give."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

import fedctta
from fedctta.aggregators import Aggregator, aggregators
from fedctta.listing import KINDS, describe, list_methods, list_models, read_package
from fedctta.models import ARCHITECTURES


def ours(kind):
    package, registry = KINDS[kind]
    known = getattr(sys.modules[package], registry).classes()
    return {name: cls for name, cls in known.items() if cls.__module__.startswith("fedctta.")}


@pytest.mark.parametrize("kind", KINDS)
def test_the_source_tells_what_the_registry_does(kind):
    told, true = read_package(KINDS[kind][0]), {name: describe(cls) for name, cls in ours(kind).items()}
    assert len(true) > 3
    assert set(told) == set(true)
    for name in true:
        assert told[name] == true[name]
        for part in ("types", "defaults"):  # also in the same order
            assert list(getattr(told[name], part)) == list(getattr(true[name], part))
        assert [type(value) for value in told[name].defaults.values()] == [
            type(value) for value in true[name].defaults.values()
        ]


def test_the_source_tells_upper_bounds():
    told = read_package("fedctta.aggregators")
    assert {name for name, method in told.items() if method.upper_bound} == {"oracle"}


def test_models_are_those_that_can_be_built():
    assert list_models() == {name: (a.description, a.parameters) for name, a in ARCHITECTURES.items()}


@dataclass(frozen=True)
class Mine(Aggregator):
    """A method of the user's."""

    name: ClassVar[str] = "mine"
    share: float = 0.5


def test_what_a_program_registers_is_listed(monkeypatch):
    monkeypatch.setattr(aggregators, "_classes", dict(aggregators.classes()))
    aggregators.register(Mine)
    assert list_methods("aggregator")["mine"] == describe(Mine)


PLUGIN = """
from dataclasses import dataclass
from typing import ClassVar
from fedctta.registry import MayBeInfinite

@dataclass(frozen=True)
class Theirs:
    'A method of theirs.'
    name: ClassVar[str] = "theirs"
    share: MayBeInfinite = 0.5

@dataclass(frozen=True)
class Impostor:
    'Not the average.'
    name: ClassVar[str] = "fedavg"
"""


def test_what_a_plugin_brings_is_listed_and_hides_nothing(tmp_path):
    (tmp_path / "plugin.py").write_text(PLUGIN)
    (tmp_path / "plugin-1.0.dist-info").mkdir()
    (tmp_path / "plugin-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    points = "[fedctta.aggregators]\ntheirs = plugin:Theirs\nfedavg = plugin:Impostor\n"
    (tmp_path / "plugin-1.0.dist-info" / "entry_points.txt").write_text(points)
    code = (
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom fedctta.listing import list_methods\n"
        "told = list_methods('aggregator')\nassert list(told) == sorted(told)\nassert 'torch' not in sys.modules\n"
        "print(told['theirs'].summary, dict(told['theirs'].defaults), told['fedavg'].summary)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "A method of theirs. {'share': 0.5} Average all models equally.\n"


def test_a_broken_plugin_takes_no_command_down(tmp_path):
    place = tmp_path / "half-1.0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: half\nVersion: 1.0\n")
    (place / "entry_points.txt").write_text("[fedctta.aggregators]\nhalf = half_missing:Nope\n")

    def call(*words):
        paths = os.pathsep.join([str(tmp_path), str(Path(fedctta.__file__).parents[1])])
        command = [sys.executable, "-m", "fedctta", *words]
        environment = {**os.environ, "PYTHONPATH": paths, "COLUMNS": "200"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        return done.returncode, done.stdout, done.stderr.strip()

    told = "entry point half = half_missing:Nope of half cannot be loaded (ModuleNotFoundError:"
    code, output, _ = call("methods")
    assert code == 0
    assert told in output
    for words in (["keys", "half"], ["run", "dataset=shapes-c", "aggregator=half"]):
        code, _, error = call(*words)
        assert code == 2
        assert told in error
        assert "\n" not in error


def test_listing_loads_no_torch():
    code = (
        "import sys\nfrom fedctta.listing import KINDS, list_methods, list_models\n"
        "found = [name for kind in KINDS for name in list_methods(kind)] + list(list_models())\n"
        "print(len(found), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, loaded = done.stdout.split()
    assert int(count) > 50
    assert loaded == "False"
