"""All names of Flower are found in the version installed here, and nothing else imports it."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import fedctta
from fedctta.errors import UserError
from fedctta.fleet import flower

SOURCE = Path(fedctta.__file__).parent


def test_this_flower_has_all_names():
    assert flower.missing() == []


def test_no_other_module_imports_flower():
    def imported(path):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield node.module or ""

    users = {p.name for p in SOURCE.rglob("*.py") if any(m.partition(".")[0] == "flwr" for m in imported(p))}
    assert users == {"flower.py"}


def test_the_pin_says_the_same():
    text = (SOURCE.parents[1] / "pyproject.toml").read_text()
    major, minor = flower.NEWEST.split(".")
    assert text.count(f">={flower.OLDEST},<{major}.{int(minor) + 1}") == 2
    assert flower.OLDEST <= version("flwr").rpartition(".")[0] <= flower.NEWEST


def test_a_name_that_is_gone_is_told(monkeypatch):
    monkeypatch.setitem(flower._HOME, "Gone", "flwr.app")
    monkeypatch.setitem(flower._HOME, "Lost", "flwr.nowhere")
    with pytest.raises(UserError, match=r"no flwr\.app\.Gone; .*pip install"):
        flower.__getattr__("Gone")
    with pytest.raises(UserError, match=r"no flwr\.nowhere\.Lost"):
        flower.__getattr__("Lost")
    assert len(flower.missing()) >= 2
    assert not hasattr(flower, "nonsense")


def test_nothing_is_replaced_if_something_is_missing(monkeypatch):
    command, handlers = map(import_module, flower.REPLACED["flower_superlink"].values())
    before = command.load_control_authn_plugin
    monkeypatch.delattr(handlers, "Fab")
    with pytest.raises(UserError, match="Fab"):
        flower.replace("flower_superlink", {"load_control_authn_plugin": None, "Fab": None})
    assert command.load_control_authn_plugin is before


def test_nothing_is_imported_before_it_is_needed():
    code = "import sys; import fedctta.fleet.flower; print('flwr' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
