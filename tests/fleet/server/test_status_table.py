"""A fleet's status, read and told."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from fedctta.fleet.server import status_table
from fedctta.fleet.server.status_table import board, headline, read_status


@pytest.fixture(autouse=True)
def noon(monkeypatch):
    monkeypatch.setattr(status_table.time, "time", lambda: 1000.0)


def show(*arguments):
    text = io.StringIO()
    Console(file=text, width=120).print(board(*arguments))
    return [line.split() for line in text.getvalue().splitlines()]


def test_a_torn_or_missing_status_is_no_status(tmp_path):
    assert read_status(tmp_path) == {}
    (tmp_path / "status.json").write_text('{"round": ')
    assert read_status(tmp_path) == {}
    (tmp_path / "status.json").write_text(json.dumps({"round": 3}))
    assert read_status(tmp_path) == {"round": 3}


def test_a_name_is_no_markup():
    node = {"device": "[/x]", "node": "1", "refused": 0, "ignored": False, "online": True}
    assert ["[/x]", "1", "yes", "?", "0", "?", "?", "?", "?"] in show({"nodes": [node], "written": 1000.0})


def test_a_status_on_one_line():
    status = {"round": 3, "rounds": 9, "doing": "running", "bytes_up": 2048, "bytes_down": 4096, "refused": 1}
    told = headline({**status, "seconds_of_round": 1.25, "written": 995.0})
    assert told == "round 3 of 9: running; last round 1.2 s; 2 KB up, 4 KB down; 1 refused"
    assert headline({}) == "the server has not spoken yet"


@pytest.mark.parametrize(("doing", "silent"), [("running", True), ("finished", False)])
def test_a_server_that_is_silent_is_told_unless_it_is_done(doing, silent):
    assert ("silent for 20 s" in headline({"doing": doing, "written": 980.0})) == silent


def test_devices_and_processes_are_listed():
    node = {"node": "1", "refused": 0, "ignored": False}
    nodes = [
        {
            **node,
            "device": "cam",
            "online": True,
            "last_round": 4,
            "health": {"answers": "source", "alarms": 2, "accuracy": 0.61, "source_accuracy": 0.553},
        },
        {**node, "device": "car", "online": False},
        {**node, "device": "van", "online": False, "silence": "no device answers at s"},
        {**node, "device": "liar", "online": True, "ignored": True, "refused": 5},
    ]
    tended = {"server": SimpleNamespace(process=SimpleNamespace(pid=77), state="runs", deaths=2)}
    supervisor = SimpleNamespace(tended=tended, memory=lambda name: 3 * 2**20)
    lines = show({"nodes": nodes, "written": 1000.0}, supervisor)
    assert ["cam", "1", "yes", "4", "0", "source", "2", "61", "%", "55", "%"] in lines
    assert ["car", "1", "no", "?", "0", "?", "?", "?", "?"] in lines
    assert ["van", "1", "no", "answer", "?", "0", "?", "?", "?", "?"] in lines
    assert ["liar", "1", "in", "quarantine", "?", "5", "?", "?", "?", "?"] in lines
    assert ["server", "77", "runs", "2", "3"] in lines
    assert len(show({"written": 1000.0})) == 1
