"""Whoever kills the supervisor and its guard leaves processes behind: the next supervisor of the folder ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from fedctta.errors import UserError
from fedctta.fleet.processes import supervisor as module
from fedctta.fleet.processes.leftovers import MARK, end_leftovers, find
from fedctta.fleet.processes.supervisor import Supervisor

SUPERVISED = """
import sys, time
from pathlib import Path
from fedctta.fleet.processes.process_specs import ProcessSpec
from fedctta.fleet.processes.supervisor import Supervisor
child = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
with Supervisor(Path(sys.argv[1])) as supervisor:
    supervisor.start(ProcessSpec("child", (sys.executable, "-c", child)))
    print(supervisor._guard.pid, supervisor.tended["child"].process.pid, flush=True)
    while True:
        time.sleep(0.1)
"""


def wait_for(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.05)


def test_both_killed_at_once_the_next_one_ends_what_is_left(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(module, "GRACE", 2.0)
    mark = str(tmp_path.resolve() / "fleet")
    command = [sys.executable, "-c", SUPERVISED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        guard, child = map(int, first.stdout.readline().split())
        log = tmp_path / "child.log"
        try:
            wait_for(lambda: log.exists() and log.read_text().endswith("\n"))
            with pytest.raises(UserError, match="another command works in"), Supervisor(tmp_path):
                pytest.fail("two supervisors would end each other's processes")
            os.kill(guard, signal.SIGKILL)
            first.kill()
            first.wait()
            left = {child, int(log.read_text())}
            assert left <= find(mark)  # nobody has ended them
            with Supervisor(tmp_path):
                assert find(mark) == set()
            assert "that an earlier command had left behind" in caplog.text
        finally:
            first.kill()
            end_leftovers(mark, 0.0)


def test_only_those_with_the_mark_are_ended(tmp_path):
    mark = str(tmp_path / "me")
    with subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: str(tmp_path / "other")}) as other:
        try:
            assert end_leftovers(str(tmp_path / "oth"), 0.1) == 0
            assert other.poll() is None
        finally:
            other.kill()
    stubborn = "from signal import *; import time; signal(SIGTERM, SIG_IGN); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", stubborn], env={**os.environ, MARK: mark}, stdout=subprocess.PIPE
    ) as mine:
        mine.stdout.readline()
        assert end_leftovers(mark, 0.2) == 1
        assert mine.wait(60) == -signal.SIGKILL
