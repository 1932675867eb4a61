"""The Python examples of README and docs run as they are printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/add-a-method.md")
EXAMPLES = [
    pytest.param(code, id=f"{page}-{k}")
    for page in PAGES
    for k, code in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL))
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_an_example_runs(code, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    example = ModuleType("example")
    monkeypatch.setitem(sys.modules, example.__name__, example)
    exec(compile(code, "example", "exec"), example.__dict__)
    assert len(example.result) == 2


def test_there_are_examples():
    assert len(EXAMPLES) == 3


def test_a_method_is_added_in_under_forty_lines():
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / PAGES[1]).read_text(encoding="utf-8"), re.DOTALL)
    assert len(code.strip().splitlines()) < 40
