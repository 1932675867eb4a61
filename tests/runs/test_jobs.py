"""Several runs at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fedctta import run
from fedctta.errors import UserError
from fedctta.runs.jobs import side_by_side, work_at_once
from fedctta.runs.settings import Experiment

SMALL = {"dataset": "shapes-c", "domains": "fog+frost", "stream": "iid", "clients": 2, "slots": 1, "batch": 4}


def test_runs_at_once_with_as_many_threads_give_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2 * torch.get_num_threads())
    values = SMALL | {"aggregator": ["local", "fedctta"]}
    at_once = run(out=tmp_path / "a", jobs=2, **values)
    one_by_one = run(out=tmp_path / "b", **values)
    for mine, other in zip(at_once.shown, one_by_one.shown, strict=True):
        for part in ("correct", "class_predicted", "calibration", "entropy", "collaboration"):
            assert np.array_equal(getattr(mine, part), getattr(other, part)), part
    assert len(list((tmp_path / "a" / "runs").iterdir())) == 3  # and the model as it is


def test_a_run_that_fails_says_why_and_the_others_are_kept(tmp_path):
    fine, wrong = (Experiment(**SMALL | {"adapter": adapter, "batch": 1}) for adapter in ("none", "bn"))
    told = []
    failed = side_by_side([fine, wrong], tmp_path, 2, True, lambda experiment, reason: told.append(reason))
    assert "batch=1 gives no batch statistics" in failed[wrong.fingerprint]
    assert sorted(map(bool, told)) == [False, True]
    assert [path.name.split("-")[1] for path in (tmp_path / "runs").iterdir()] == ["none"]


def refuse_odd(number: int) -> None:
    if number % 2:
        raise UserError(f"{number} is odd")


def test_reasons_stand_in_the_order_of_the_items():
    told = []
    found = work_at_once(refuse_odd, [1, 2, 3], 2, lambda item, reason: told.append((item, reason)))
    assert found == ["1 is odd", "", "3 is odd"]
    assert sorted(told) == [(1, "1 is odd"), (2, ""), (3, "3 is odd")]


def test_jobs_need_a_folder_and_names(tmp_path):
    with pytest.raises(UserError, match="jobs need a folder"):
        run(jobs=2, **SMALL)
    with pytest.raises(UserError, match="--jobs 0 must be at least 1"):
        run(out=tmp_path, jobs=0, **SMALL)


def descendants(process: int) -> list[int]:
    """Return the processes below one, by number."""
    try:
        found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []
    return [below for child in map(int, found) for below in (child, *descendants(child))]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_told_to_end_it_ends_its_processes_too(tmp_path):
    words = [
        "dataset=shapes-c",
        "clients=20",
        "batch=10",
        "slots=10",
        "adapter=cotta",
        "seed=0,1",
        "cotta.confidence=1",
    ]
    command = [sys.executable, "-m", "fedctta", "run", *words, "--jobs", "2", "--quiet", "--out", str(tmp_path / "out")]
    environment = os.environ | {"FEDCTTA_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as running:
        try:
            until = time.monotonic() + 120
            while len(below := descendants(running.pid)) < 3 and time.monotonic() < until:  # a tracker and two players
                time.sleep(0.1)
            assert len(below) >= 3
            running.send_signal(signal.SIGTERM)
            assert running.wait(60) == 128 + signal.SIGTERM
        finally:
            running.kill()
    until = time.monotonic() + 60
    while (left := [each for each in below if Path(f"/proc/{each}").exists()]) and time.monotonic() < until:
        time.sleep(0.1)
    for each in left:
        os.kill(each, signal.SIGKILL)
    assert not left
    assert not list(tmp_path.rglob("*.part"))


def test_a_process_told_to_end_begins_no_other_item():
    """The pool would take SystemExit for a result, and go on."""
    code = """
import sys
from fedctta.runs import jobs
try:
    jobs._attempt(lambda item: sys.exit(143), None)
except BaseException:
    print("went on")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=600)
    assert (ended.returncode, ended.stdout) == (143, b"")
