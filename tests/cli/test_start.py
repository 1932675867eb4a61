"""Commands that compute nothing start at once: they load nothing that is slow to load."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SLOW = ("torch", "matplotlib", "scipy", "pyarrow", "flwr")
CALL = f"""
import atexit, sys
atexit.register(lambda: print("loaded:", *(name for name in {SLOW} if name in sys.modules)))
from fedctta.cli import main
sys.argv[0] = "fedctta"
main()
"""


def call(*words, **env):
    command = [sys.executable, "-c", CALL, *map(str, words)]
    env = {**os.environ, "COLUMNS": "200", **env}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    text, _, loaded = done.stdout.rpartition("loaded:")
    return text, loaded.split()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--help"], "reproduce"),
        (["--version"], "."),
        (["run", "--help"], "--resume"),
        (["methods"], "case-fedctta"),
        (["keys"], "min_batch"),
        (["keys", "fedctta.temperature"], "default: 1.0"),
        (["data"], "shapes-c"),
        (["reproduce"], "fedctta-table1"),
        (["pretrain", "--help"], "method=atp"),
        (["device", "--help"], "--lockstep"),
        (["fleet", "--help"], "proxy"),
    ],
)
def test_nothing_slow_is_loaded(words, said, tmp_path):
    text, loaded = call(*words, FEDCTTA_HOME=str(tmp_path))
    assert said in text
    assert loaded == []


def test_a_fleets_status_loads_nothing_slow(tmp_path):
    (tmp_path / "status.json").write_text(json.dumps({"doing": "running", "round": 3, "rounds": 9}))
    text, loaded = call("fleet", "status", tmp_path)
    assert "round 3 of 9: not running" in text  # nobody is at work there
    assert loaded == []


def test_a_run_loads_what_it_needs():
    """The measure itself works: a command that computes does load torch."""
    command = [sys.executable, "-c", CALL.replace("main()\n", "import fedctta.runs.experiment\n"), "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "torch" in done.stdout


def test_the_shell_completes_commands():
    env = {"_FEDCTTA_COMPLETE": "complete_bash", "COMP_WORDS": "fedctta me", "COMP_CWORD": "1"}
    text, loaded = call(**env)
    assert text.split() == ["methods"]
    assert loaded == []


def test_a_run_that_draws_nothing_loads_nothing_that_draws():
    code = f"import sys, fedctta.runs.experiment; print(*({set(SLOW)} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["torch"]
