"""Imports point one way: down."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedctta

SOURCE = Path(fedctta.__file__).parent
LAYERS = (
    ("errors",),
    ("ranges",),
    ("keys",),
    ("files", "registry", "machine"),
    ("core", "data", "sampling", "results", "listing"),
    ("models", "streams", "books"),
    ("adapters", "aggregators"),
    ("uploads", "health"),
    ("engine",),
    ("report", "online"),
    ("runs",),
    ("training", "fleet"),
    ("papers",),
    ("bench",),
    ("cli",),
    ("__main__",),
)
HEIGHT = {room: height for height, rooms in enumerate(LAYERS) for room in rooms}


def imports(node: ast.AST, lazy: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield (imported module, whether inside a function) of all imports that really happen."""
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        return
    if isinstance(node, ast.Import):
        yield from ((alias.name, lazy) for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative imports hide their direction"
        yield from ((f"{node.module}.{alias.name}", lazy) for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imports(child, lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))


def violations(room: str, code: str) -> list[str]:
    """Return the imports that do not point down from `room`."""
    found = []
    for module, lazy in imports(ast.parse(code)):
        package, _, rest = module.partition(".")
        target = rest.partition(".")[0]
        if package != "fedctta" or target in ("", "__version__", room):
            continue
        down = target in HEIGHT and HEIGHT[target] < HEIGHT[room]
        if (room, target) == ("models", "data"):  # models know data only as a place to keep weights
            down = lazy and module.startswith("fedctta.data.cache.")
        if not down:
            found.append(f"{room} imports {module}")
    return found


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE)
        if place != Path("__init__.py"):
            yield (place.parts[0] if len(place.parts) > 1 else place.stem), path


def test_every_module_has_a_layer():
    assert {room for room, _ in modules()} <= set(HEIGHT)


def test_imports_point_down():
    assert [wrong for room, path in modules() for wrong in violations(room, path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("room", "code"),
    [
        ("adapters", "from fedctta.engine.rounds import play"),
        ("adapters", "from fedctta.aggregators import mix"),
        ("core", "import fedctta.adapters.bn"),
        ("errors", "def f():\n    from fedctta import files"),
        ("engine", "from fedctta import run"),
        ("models", "from fedctta.data.cache import cache_dir"),
        ("models", "def f():\n    from fedctta.data.cifar import load"),
    ],
)
def test_an_import_that_points_up_or_aside_is_seen(room, code):
    assert len(violations(room, code)) == 1


@pytest.mark.parametrize(
    ("room", "code"),
    [
        ("engine", "from fedctta.adapters import Adapter\nfrom fedctta import errors\nimport torch"),
        ("core", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fedctta.adapters import Adapter"),
        ("models", "def f():\n    from fedctta.data.cache import cache_dir"),
        ("data", "from fedctta.data.cache import cache_dir"),
        ("cli", "from fedctta import __version__"),
    ],
)
def test_an_import_that_points_down_is_fine(room, code):
    assert violations(room, code) == []
