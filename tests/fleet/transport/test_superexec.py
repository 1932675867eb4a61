"""The token of a run reaches the ServerApp, and no command line."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from flwr.common.constant import FLWR_TASK_TOKEN_LENGTH
from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType

from fedctta.fleet.transport import superexec

TOKEN = "5a" * FLWR_TASK_TOKEN_LENGTH
READS = """#!{python}
import argparse, sys
from flwr.common.args import add_args_flwr_app_common, try_obtain_flwr_app_token
parser = argparse.ArgumentParser()
parser.add_argument("--runtime-api-address")
add_args_flwr_app_common(parser)
token = try_obtain_flwr_app_token(parser.parse_args())
open({out!r}, "w").write(repr([token, sys.argv]))
"""


def test_the_token_is_read_from_a_file_without_a_name(tmp_path, monkeypatch):
    executor = import_module("flwr.supercore.superexec.executor.subprocess_executor")
    monkeypatch.setattr(executor, "subprocess", executor.subprocess)
    monkeypatch.setattr(sys, "argv", sys.argv)
    command = import_module("flwr.supercore.cli.flower_superexec")
    monkeypatch.setattr(command, "flower_superexec", lambda: None)
    superexec.main(["--insecure"])
    assert sys.argv == ["flower-superexec", "--insecure"]

    out, program = tmp_path / "out", tmp_path / TASK_TYPE_TO_COMMAND[TaskType.SERVER_APP]
    program.write_text(READS.format(python=sys.executable, out=str(out)))
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    started = []

    def start(*words, **options):
        started.append(subprocess.Popen(*words, **options))
        return started[0]

    monkeypatch.setattr(superexec, "subprocess", SimpleNamespace(Popen=start))
    spec = {"task_type": TaskType.SERVER_APP, "runtime_api_address": "127.0.0.1:1", "token": TOKEN, "insecure": True}
    rest = {"parent_pid": None, "runtime_dependency_install": False, "suppress_output": False}
    executor.SubprocessExecutor().launch(SimpleNamespace(**spec, **rest))
    assert started[0].wait(60) == 0
    token, words = eval(out.read_text())
    assert token == TOKEN
    assert TOKEN not in " ".join(words)
    assert not any(TOKEN in word for word in started[0].args)
