"""The command, as a user types it."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

import fedctta.bench
from fedctta.cli import app, main

TINY = [
    *("bench", "--models", "resnet8-w16", "--clients", "2", "--batch", "2", "--rounds", "3"),
    *("--adapters", "bn", "--aggregators", "fedctta", "--device", "cpu"),
]


def test_bench_prints_tables_and_writes_files(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))
    result = CliRunner().invoke(app, [*TINY, "--out", str(tmp_path / "out")], catch_exceptions=False)
    assert result.exit_code == 0
    assert "d/b" in result.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"bench.md", "bench.json", "bench.png"}
    assert not (tmp_path / "home").exists()  # neither data nor weights are looked for
    (cell,) = json.loads((tmp_path / "out" / "bench.json").read_text())["cells"]
    assert all(len(cell["ways"][way]["rounds_ms"]) == 3 for way in "abcd")


def test_bad_input_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedctta", "bench", "--models", "resnet9", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as done:
        main()
    assert done.value.code == 2
    assert capsys.readouterr().err.startswith("fedctta: unknown model to measure 'resnet9'")


def test_ctrl_c_keeps_what_is_finished(tmp_path, monkeypatch):
    def interrupted(plan, on_cell):
        yield from list(real(plan, on_cell))[:1]
        raise KeyboardInterrupt

    real = fedctta.bench.run
    monkeypatch.setattr(fedctta.bench, "run", interrupted)
    result = CliRunner().invoke(app, [*TINY, "--ways", "a", "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 130
    assert len(json.loads((tmp_path / "bench.json").read_text())["cells"]) == 1
