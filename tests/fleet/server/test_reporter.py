"""The server tells who takes part, why it waits, and what its last rounds were like."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parents[1]))

from pretend import assemble, context_of, make_devices

from fedctta.fleet.server.audit import chain_breaks, read_audit
from fedctta.fleet.server.bindings import Bindings, write_bindings
from fedctta.fleet.server.reporter import ROUNDS, Reporter
from fedctta.fleet.server.roster import Roster
from fedctta.fleet.server.server_app import app
from fedctta.fleet.simulation.grid import InProcessGrid


def reporter(folder, devices=3, names=(), nodes=(), hellos=(), silence=(), run="r", round_=0):
    roster = Roster(8, names=list(names), nodes=dict(nodes))
    letters = SimpleNamespace(roster=roster, hellos=dict(hellos), silence=dict(silence), bindings=Bindings(folder))
    place = SimpleNamespace(run=run, round=round_, bytes_up=0, bytes_down=0)
    return Reporter(SimpleNamespace(devices=devices), None, SimpleNamespace(folder=folder), place, letters)


def test_a_wait_names_who_is_missing_and_why(tmp_path):
    assert reporter(tmp_path).explain_wait(()) == "0 of 3 are here"
    write_bindings(tmp_path, {node: (name, "") for node, name in ((1, "car"), (7, "cam"), (8, "van"))})
    told = reporter(tmp_path).explain_wait(())
    assert told.endswith("missing: cam, car, van: are their nodes running, and do they reach the server?")
    told = reporter(tmp_path, hellos={1: "car"}, silence={3: "was refused: the device runs adapter 'bn'"})
    assert told.explain_wait([1, 2, 3]) == (
        "1 of 3 are here (car); missing: cam, van; nodes that are online and have not said yet whose they are: 2;"
        " node 3 was refused: the device runs adapter 'bn'"
    )


def test_after_a_restart_those_who_were_here_before_are_missed(tmp_path):
    told = reporter(tmp_path, devices=2, names=["cam", "car"], nodes={1: 0}).explain_wait([1])
    assert told.startswith("1 of 2 are here (cam); missing: car")


def test_a_wait_is_logged_when_it_changes(tmp_path, caplog):
    caplog.set_level("INFO", "fedctta.fleet")
    told = reporter(tmp_path)
    for online in ((), (), (5,), (5,)):
        told._note_wait(online)
    assert [line.split(": ")[0] for line in caplog.messages] == ["waiting for devices"] * 2


def test_rounds_are_remembered_through_a_restart_and_not_for_ever(tmp_path):
    first = reporter(tmp_path, round_=ROUNDS + 5)
    for k in range(ROUNDS + 5):
        first.place.bytes_up += k
        first.note_round(k, 2, 1.5)
    assert len(first._history) == ROUNDS
    assert first._history[-1] | {"time": 0} == {
        **{"round": ROUNDS + 4, "time": 0, "seconds": 1.5, "uploads": 2},
        **{"bytes_up": ROUNDS + 4, "bytes_down": 0},
    }
    status = {"run": "r", "history": first._history}
    (tmp_path / "status.json").write_text(json.dumps(status))
    again = reporter(tmp_path, round_=ROUNDS + 4)  # which died before the last round was saved
    assert [line["round"] for line in again._history] == [line["round"] for line in first._history][:-1]
    assert reporter(tmp_path, run="another")._history == []


def test_a_fleet_tells_everything_and_records_who_was_admitted_and_refused(tmp_path):
    federation, stream = assemble(aggregator="fedavg")
    devices = make_devices(federation, stream, 3)
    devices[103].spoil = lambda reply: (
        reply if reply.kind == "hello" else reply.arrays["own.stem.1.running_mean"].view("u1")
    )
    fleet = {"rounds": 2, "lockstep": False, "quarantine": 1}
    app(InProcessGrid(devices), context_of(tmp_path, fleet, aggregator="fedavg"))
    state = tmp_path / "server"
    status = json.loads((state / "status.json").read_text())
    assert status["doing"] == "finished"
    assert [line["uploads"] for line in status["history"]] == [3, 3]
    assert status["method"]["aggregator"] == "fedavg"
    assert status["versions"].keys() == {"fedctta", "torch", "flwr"}
    by_name = {node["device"]: node for node in status["nodes"]}
    assert by_name["device-0"]["ignored"]
    assert by_name["device-0"]["last_round"] is None
    assert by_name["device-1"]["last_round"] == 1
    assert chain_breaks(state) == []
    events = [(line["event"], line.get("device")) for line in read_audit(state)]
    assert events[:2] == [("server started", None), ("plan set", None)]
    assert events[2:] == [*(("admitted", f"device-{k}") for k in range(4)), ("refused", "device-0")]
    assert "device-2 joined" in (state / "server.log").read_text()
    assert "round 1 closed: 3 of 4 devices" in (state / "server.log").read_text()
