"""`fedctta doctor` as a command."""

from __future__ import annotations

import subprocess
import sys

from PIL import Image
from typer.testing import CliRunner

from fedctta.cli import app

MODEL = "    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())\n"


def test_it_says_what_it_found():
    done = CliRunner().invoke(app, ["doctor", "data=shapes-c", "domains=fog", "device=cpu", "--no-adapters"])
    assert done.exit_code == 0
    for about in ("input", "range", "norm layers", "output", "accuracy", "normalisation"):
        assert about in done.output


def test_a_model_that_runs_refuse_is_refused(tmp_path):
    for name in range(24):
        (tmp_path / "site" / f"kind {name:02}").mkdir(parents=True)
        Image.new("RGB", (32, 32), (10 * name, 0, 0)).save(tmp_path / "site" / f"kind {name:02}" / "a.png")
    (tmp_path / "two_outputs.py").write_text("def make():\n    from torch import nn\n" + MODEL)
    words = [f"data={tmp_path}", "model=two_outputs:make", "weights=random", "device=cpu"]
    command = [sys.executable, "-m", "fedctta", "doctor", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    said = "2 outputs, and the classes of the data are 24: choose a model that fits"
    assert done.stderr.startswith(f"fedctta: the model does not fit: {said}")


def test_a_model_that_cannot_be_imported_is_one_line_as_it_was_written():
    command = [sys.executable, "-m", "fedctta", "doctor", "data=shapes-c", "model=nowhere:x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    reason = "ModuleNotFoundError: No module named 'nowhere'"
    assert done.stderr == f"fedctta: cannot import model=nowhere:x: {reason}; write module:function\n"
