"""`fedctta doctor` as a command."""

from __future__ import annotations

import subprocess
import sys

from typer.testing import CliRunner

from fedctta.cli import app


def test_it_says_what_it_found():
    done = CliRunner().invoke(app, ["doctor", "data=shapes-c", "domains=fog", "device=cpu", "--no-adapters"])
    assert done.exit_code == 0
    for about in ("input", "range", "norm layers", "output", "accuracy", "normalisation"):
        assert about in done.output


def test_a_model_that_cannot_be_imported_is_one_line_as_it_was_written():
    command = [sys.executable, "-m", "fedctta", "doctor", "data=shapes-c", "model=nowhere:x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    reason = "ModuleNotFoundError: No module named 'nowhere'"
    assert done.stderr == f"fedctta: cannot import model=nowhere:x: {reason}; write module:function\n"
