"""Benchmarks are not run here, but they import: what they name exists."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_benchmark_imports_and_says_how_it_is_run(path, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    names = runpy.run_path(str(path), run_name="benchmark")
    assert f"python benchmarks/{path.name}" in names["__doc__"]
    assert callable(names["main"])
