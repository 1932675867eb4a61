"""Several runs at once."""

from __future__ import annotations

import pytest

from fedctta import run
from fedctta.errors import UserError
from fedctta.jobs import side_by_side
from fedctta.settings import Experiment

SMALL = {"dataset": "shapes-c", "domains": "fog+frost", "stream": "iid", "clients": 2, "slots": 1, "batch": 4}


def test_runs_at_once_give_the_same_numbers(tmp_path):
    values = SMALL | {"aggregator": ["local", "fedavg"]}
    at_once = run(out=tmp_path / "a", jobs=2, **values)
    one_by_one = run(out=tmp_path / "b", **values)
    assert [r.accuracy for r in at_once] == [r.accuracy for r in one_by_one]
    assert len(list((tmp_path / "a" / "runs").iterdir())) == 2


def test_a_run_that_fails_says_why_and_the_others_are_kept(tmp_path):
    fine, wrong = (Experiment(**SMALL | {"adapter": adapter, "batch": 1}) for adapter in ("none", "bn"))
    told = []
    failed = side_by_side([fine, wrong], tmp_path, 2, True, lambda experiment, reason: told.append(reason))
    assert "batch=1 gives no batch statistics" in failed[wrong.fingerprint]
    assert sorted(map(bool, told)) == [False, True]
    assert [path.name.split("-")[1] for path in (tmp_path / "runs").iterdir()] == ["none"]


def test_jobs_need_a_folder_and_names(tmp_path):
    with pytest.raises(UserError, match="jobs need a folder"):
        run(jobs=2, **SMALL)
    with pytest.raises(UserError, match="--jobs 0 must be at least 1"):
        run(out=tmp_path, jobs=0, **SMALL)
