"""The README's Python examples run as they are printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

README = Path(__file__).parent.parent / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("code", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_runs(code, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    example = ModuleType("readme_example")
    monkeypatch.setitem(sys.modules, example.__name__, example)
    exec(compile(code, "README.md", "exec"), example.__dict__)
    assert len(example.result) == 2


def test_there_are_examples():
    assert len(EXAMPLES) == 2
