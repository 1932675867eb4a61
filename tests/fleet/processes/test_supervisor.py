"""What dies is started again, what ends well is done, and at the end nothing is left."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from fedctta.errors import UserError
from fedctta.fleet.processes import supervisor as module
from fedctta.fleet.processes.process_specs import ProcessSpec
from fedctta.fleet.processes.supervisor import Supervisor

FOREVER = "import time\nprint('here', flush=True)\ntime.sleep(60)"
PARENT = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {FOREVER!r}], start_new_session=SESSION)
print(child.pid, flush=True)
time.sleep(60)
"""


def python(name, code, finite=False):
    return ProcessSpec(name, (sys.executable, "-c", code), finite=finite)


def wait_for(condition, supervisor=None, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition():
        if supervisor is not None:
            supervisor.tend()
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.02)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
        return file.read().rpartition(")")[2].split()[0] != "Z"


def test_a_dead_part_comes_back_with_a_longer_pause_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SHORTEST", 0.05)
    with Supervisor(tmp_path) as supervisor:
        supervisor.start(python("p", FOREVER))
        tended = supervisor.tended["p"]
        tended.pause = 0.05
        for deaths in (1, 2):
            pid = tended.process.pid
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda pid=pid: tended.process.pid != pid, supervisor)
            assert tended.deaths == deaths
        assert tended.pause == pytest.approx(0.2)
        last = tended.process.pid
        wait_for(lambda: (tmp_path / "p.log").read_text().count("here") >= 1)
    assert not alive(last)


def test_a_finite_part_is_done_when_it_ends_well_and_restarted_otherwise(tmp_path):
    with Supervisor(tmp_path) as supervisor:
        supervisor.start(python("good", "print('bye')", finite=True))
        supervisor.start(python("bad", "raise SystemExit(3)", finite=True))
        wait_for(lambda: supervisor.tended["good"].done, supervisor)
        wait_for(lambda: supervisor.tended["bad"].state == "restarting", supervisor)
        assert supervisor.tail("good") == "bye"
        supervisor.start(python("wrong", "print('no such model: choose another')\nraise SystemExit(2)", finite=True))
        with pytest.raises(UserError, match="wrong ended: no such model: choose another"):
            wait_for(lambda: False, supervisor)


@pytest.mark.parametrize("session", [False, True])  # Flower starts an app in a session of its own
def test_children_end_too(tmp_path, monkeypatch, session):
    monkeypatch.setattr(module, "GRACE", 2.0)
    children = []

    def trouble():
        with Supervisor(tmp_path) as supervisor:
            supervisor.start(python("parent", PARENT.replace("SESSION", str(session))))
            wait_for(lambda: (tmp_path / "parent.log").read_text().strip())
            children.append(int((tmp_path / "parent.log").read_text().split()[0]))
            assert supervisor.memory("parent") > 2**20
            raise RuntimeError("trouble")

    with pytest.raises(RuntimeError, match="trouble"):
        trouble()
    assert not alive(children[0])


def test_sigterm_ends_the_block(tmp_path):
    pids = []

    def terminated():
        with Supervisor(tmp_path) as supervisor:
            supervisor.start(python("p", FOREVER))
            pids.append(supervisor.tended["p"].process.pid)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)

    with pytest.raises(KeyboardInterrupt):
        terminated()
    assert not alive(pids[0])


def test_a_guard_that_dies_is_noticed(tmp_path):
    with Supervisor(tmp_path) as supervisor:
        before = supervisor._guard.pid
        os.kill(before, signal.SIGKILL)
        wait_for(lambda: supervisor._guard.pid != before, supervisor)


TALKS = """
import os, sys, time
for number in range(1000):
    sys.stdout.write(f"{number:0999}\\n")
    sys.stdout.flush()
    while number % 60 == 59 and os.fstat(1).st_size:  # until the log is begun anew
        time.sleep(0.01)
"""


def test_logs_are_bounded_and_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LARGEST", 59_000)
    monkeypatch.setattr(module, "ROTATE", 0.0)
    log, last = tmp_path / "p.log", tmp_path / "p.log.1"
    with Supervisor(tmp_path) as supervisor:
        supervisor.start(python("p", TALKS))
        for times in range(3):
            wait_for(lambda: log.stat().st_size > 59_000)
            supervisor.tend()
            assert list(map(int, last.read_text().splitlines())) == list(range(60 * times, 60 * times + 60))
            assert last.stat().st_mode & 0o777 == 0o600
        wait_for(lambda: log.stat().st_size > 2000)
    assert int(log.read_text().splitlines()[0]) == 180  # no hole where the old content was
