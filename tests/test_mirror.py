"""Tests mirror the source: src/fedctta/a/b.py is tested by tests/a/test_b.py, and a package a/ by tests/a/test_a.py."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fedctta

SOURCE, TESTS = Path(fedctta.__file__).parent, Path(__file__).parent

# Modules without a mirror, and why; keep it as short as possible.
ALLOWED: dict[str, str] = {}


def mirrors(module: Path) -> list[Path]:
    """Return where the tests of a module, given by its path below the package, may lie."""
    if module.name == "__init__.py":
        package = module.parent
        return [package / f"test_{package.name}.py", package.parent / f"test_{package.name}.py"]
    return [module.parent / f"test_{module.stem}.py"]


def has_code(path: Path) -> bool:
    """Whether a package's `__init__` defines something, and does not only gather names."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in body)


def without_mirror(source: Path, tests: Path) -> list[str]:
    """Return the modules that no test file mirrors. The root, `test_package.py`, and `__main__` need none."""
    found = []
    for path in sorted(source.rglob("*.py")):
        module = path.relative_to(source)
        exempt = module.name == "__main__.py" or module == Path("__init__.py")
        if exempt or (module.name == "__init__.py" and not has_code(path)):
            continue
        if not any((tests / mirror).is_file() for mirror in mirrors(module)):
            found.append(module.as_posix())
    return found


def test_every_module_has_its_mirror():
    assert [module for module in without_mirror(SOURCE, TESTS) if module not in ALLOWED] == []


def test_what_is_allowed_is_needed():
    assert set(ALLOWED) <= set(without_mirror(SOURCE, TESTS))


@pytest.mark.parametrize(
    ("module", "code", "test", "fine"),
    [
        ("a/b.py", "", "a/test_b.py", True),
        ("a/b.py", "", "test_b.py", False),
        ("a/__init__.py", "def f(): ...", "a/test_a.py", True),
        ("a/__init__.py", "def f(): ...", "test_a.py", True),
        ("a/__init__.py", "def f(): ...", "a/test_b.py", False),
        ("a/__init__.py", "from x import y", "test_z.py", True),
        ("__main__.py", "", "test_z.py", True),
    ],
)
def test_a_missing_mirror_is_seen(tmp_path, module, code, test, fine):
    for path, text in ((tmp_path / "src" / module, code), (tmp_path / "tests" / test, "")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert without_mirror(tmp_path / "src", tmp_path / "tests") == ([] if fine else [module])
