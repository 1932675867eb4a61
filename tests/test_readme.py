"""The Python examples of README and docs run as they are printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fedctta.report.titles import method_title
from fedctta.runs.settings import expand, load_preset, parse_words

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/add-a-method.md", "docs/data.md")
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
    if "result" in vars(example):
        assert len(example.result) == 2
    else:
        assert example.logits.shape == (16, 10)


def test_there_are_examples():
    assert len(EXAMPLES) == 5


def test_one_command_makes_all_rows_of_the_readmes_table_on_the_same_seeds():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (words,) = re.findall(r"^fedctta run demo (.*seed=.*?)(?:\s+#.*)?$", text, re.MULTILINE)
    runs = expand({**load_preset("demo").values, **parse_words(words.split())})
    rows = re.findall(r"^\| (?:\[|\*)?([\w-]+).*\d\d\.\d\d", text, re.MULTILINE)
    made = {method_title({"adapter": run.adapter, "aggregator": run.aggregator}).split()[0] for run in runs}
    assert set(rows) == made
    seeds = {(run.stream, run.adapter, run.aggregator): set() for run in runs}
    for run in runs:
        seeds[run.stream, run.adapter, run.aggregator].add(run.seed)
    (same,) = {frozenset(found) for found in seeds.values()}
    assert "over seeds {}, {} and {},".format(*sorted(same)) in text


def test_a_method_is_added_in_under_forty_lines():
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / PAGES[1]).read_text(encoding="utf-8"), re.DOTALL)
    assert len(code.strip().splitlines()) < 40
