"""What is known of a method stands in its file: nothing else in the package says a method's name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedctta
from fedctta.adapters import adapters
from fedctta.aggregators import aggregators

SOURCE = Path(fedctta.__file__).parent
CLASSES = [cls for registry in (adapters, aggregators) for cls in registry.classes().values()]
NAMES = {cls.name for cls in CLASSES}
HOMES = {name: {cls.__module__ for cls in CLASSES if cls.name == name} for name in NAMES}
METHODS = {module for modules in HOMES.values() for module in modules}

# Words that mean other things, too; they are looked for only where an adapter or aggregator is compared with them.
HOMONYMS = {"none", "fedctta", "eta"}

ALLOWED = {
    # Defaults, and what is said of a default where asking its class would import torch for a line of help.
    "runs.settings": {"local"},
    "cli.fleet": {"bn", "recall"},
    "cli.device": {"bn", "recall"},
    "keys": {"bn", "recall", "fedavg"},  # the defaults, and weights=fedavg, which is no aggregator
    # How a source model was trained: federation=fedavg is no aggregator.
    "training.plan": {"fedavg"},
    "models.zoo": {"fedavg"},
    # The layers of a network are called so.
    "models.wide_resnet": {"bn"},
    # Benchmarks measure a fixed grid, against published code of these very methods.
    "bench.cells": {"bn", "grad", "tent", "bbn", "fedavg", "fedtsa"},
    "bench.memory": {"fedtsa"},
    "bench.servers": {"fedtsa"},
    "bench.ways": {"bn", "grad", "tent", "bbn"},
    "cli.bench": {"bn", "tent", "fedavg", "fedtsa"},  # examples
    # Two published kinds of random views, which are called after the methods they come from.
    "adapters.common.augmentation": {"cotta", "roid"},
    "adapters.fedthe": {"cotta"},
    # The methods whose loss it can minimise.
    "adapters.cola": {"tent", "eata", "sar"},
    "adapters.common.inner": {"tent", "eata", "sar"},
    "adapters.recall": {"tent"},  # the remedy for a model without BatchNorm
    # The remedy of a method whose partner, or whose own helper, cannot do what it needs; aggregators see no adapters.
    "adapters.common.balanced": {"bbn", "bn"},
    "aggregators.cfl": {"grad", "local"},
    "aggregators.fedbn": {"grad", "local"},
    "aggregators.pfedbbn": {"bbn", "bn", "norm-ema", "rotta", "grad"},
}
# Who may import a method's module: what a method learns beforehand lies beside it, bench plays it in the published way,
# and a federation in which nobody shares needs the aggregator that does nothing.
IMPORTERS = {"training", "bench", "adapters", "aggregators"}
IMPORTS = {("runs.guards", "fedctta.aggregators.local")}


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield every string of a module that is no docstring."""
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.value


def said(tree: ast.AST, module: str = "") -> set[str]:
    """Return the names of methods, apart from the module's own, that a module says in its strings."""
    words = {word for text in texts(tree) for word in re.findall(r"[\w-]+", text)}
    return {name for name in (NAMES - HOMONYMS) & words if module not in HOMES[name]}


def compared(tree: ast.AST) -> set[str]:
    """Return the names of methods that a module compares an adapter or aggregator with."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and re.search("adapter|aggregator", ast.unparse(node)):
            found |= NAMES & {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
    return found


def modules() -> dict[str, ast.Module]:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def test_nobody_else_says_a_methods_name():
    found = {name: said(tree, f"fedctta.{name}") for name, tree in modules().items()}
    assert {name: names for name, names in found.items() if names - ALLOWED.get(name, set())} == {}


def test_what_is_allowed_is_there():
    found = {name: said(tree, f"fedctta.{name}") for name, tree in modules().items()}
    assert {name: names - found[name] for name, names in ALLOWED.items() if names - found[name]} == {}


def test_nobody_asks_which_method_it_is():
    found = {name: compared(tree) for name, tree in modules().items()}
    assert {name.partition(".")[0] for name, names in found.items() if names} <= {"bench"}  # of its fixed grid


def test_nobody_else_imports_a_methods_file():
    found = {
        (name, node.module)
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in METHODS and name.partition(".")[0] not in IMPORTERS
    }
    assert found == IMPORTS


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ('TITLES = {"kin": "Kin"}', {"kin"}),
        ('raise UserError(f"{a}: use bn, norm-ema or tent")', {"bn", "norm-ema", "tent"}),
        ('"""About kin."""\ndef f():\n    """Of bn."""', set()),
        ('engine = "fedctta"', set()),
        ("binary = 'kinship'", set()),
    ],
)
def test_a_name_in_a_string_is_seen(code, names):
    assert said(ast.parse(code)) == names


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ('settings.get("adapter") == "none"', {"none"}),
        ('if adapter.name in ("eta", "tent"): pass', {"eta", "tent"}),
        ('robust == "none"', set()),
    ],
)
def test_a_comparison_is_seen(code, names):
    assert compared(ast.parse(code)) == names
