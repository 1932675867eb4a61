"""Whoever kills the supervisor does not leave its processes behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from fedctta.fleet.processes.guard import Guard, end

SUPERVISED = """
import sys, time
from pathlib import Path
from fedctta.fleet.processes.process_specs import ProcessSpec
from fedctta.fleet.processes import supervisor as module
module.GRACE = 0.5
child = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
stubborn = "from signal import *; import time; signal(SIGTERM, SIG_IGN); print('here', flush=True); time.sleep(60)"
with module.Supervisor(Path(sys.argv[1])) as supervisor:
    for name, code in (("child", child), ("stubborn", stubborn)):
        supervisor.start(ProcessSpec(name, (sys.executable, "-c", code)))
    print(*(t.process.pid for t in supervisor.tended.values()), flush=True)
    for _ in range(600):
        time.sleep(0.1)  # in steps: Python does not see a signal that comes just before a sleep until the sleep ends
"""


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_supervisor_that_is_killed_leaves_nothing_behind(tmp_path, how):
    command = [sys.executable, "-c", SUPERVISED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as supervisor:
        pids = [int(word) for word in supervisor.stdout.readline().split()]
        try:
            logs = [tmp_path / f"{name}.log" for name in ("child", "stubborn")]
            wait_for(lambda: all(log.exists() and log.read_text().endswith("\n") for log in logs))
            pids.append(int(logs[0].read_text()))
            assert all(map(alive, pids))
            supervisor.send_signal(how)
            wait_for(lambda: not any(map(alive, pids)))
        finally:
            supervisor.kill()
            end(pids[:2], 0.0)


def test_who_is_forgotten_is_left_alone():
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        guard = Guard(0.2)
        guard.watch(process.pid)
        guard.forget(process.pid)
        guard.dismiss()
        assert process.poll() is None
        second = Guard(0.2)
        second.watch(process.pid)
        second.dismiss()
        assert process.wait(60) == -signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_a_guard_that_is_killed_is_replaced_and_knows_what_the_last_one_knew():
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        guard = Guard(0.2)
        guard.watch(process.pid)
        first = guard.pid
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: guard._process.poll() is not None)
        guard.tend()
        assert guard.pid != first
        guard.tend()
        guard.dismiss()
        assert process.wait(60) == -signal.SIGTERM
