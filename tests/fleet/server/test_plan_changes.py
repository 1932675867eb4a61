"""A changed plan is seen, logged and recorded."""

from __future__ import annotations

from fedctta.fleet.server.audit import read_audit
from fedctta.fleet.server.plan import make_plan
from fedctta.fleet.server.plan_changes import PLAN, note_plan


def plan(folder, **fleet):
    return make_plan({"state": str(folder), **fleet}, {"dataset": "shapes-c"})


def test_a_change_is_recorded_with_what_was_and_what_is(tmp_path, caplog):
    caplog.set_level("INFO", "fedctta.fleet")
    note_plan(plan(tmp_path), 0)
    note_plan(plan(tmp_path), 4)
    note_plan(plan(tmp_path, deadline=5.0), 7)
    told = read_audit(tmp_path)
    started = ["server started"]
    assert [line["event"] for line in told] == [*started, "plan set", *started, *started, "plan changed"]
    assert told[1]["plan"]["experiment.dataset"] == "shapes-c"
    assert told[-1]["changes"] == {"deadline": [30.0, 5.0]}
    assert told[-1]["round"] == 7
    assert caplog.messages[-1] == "plan changed: deadline 30.0 -> 5.0"


def test_another_state_folder_is_no_change(tmp_path):
    note_plan(plan(tmp_path / "a"), 0)
    (tmp_path / "a").rename(tmp_path / "b")
    note_plan(plan(tmp_path / "b"), 1)
    assert [line["event"] for line in read_audit(tmp_path / "b")][-1] == "server started"


def test_a_damaged_note_is_written_anew(tmp_path):
    (tmp_path / PLAN).write_text("[")
    note_plan(plan(tmp_path), 0)
    note_plan(plan(tmp_path, rounds=7), 0)
    assert read_audit(tmp_path)[-1]["changes"] == {"rounds": [100, 7]}
