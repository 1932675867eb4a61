"""Events are told once, in order, and without what a terminal would obey."""

from __future__ import annotations

from types import SimpleNamespace

from fedctta.fleet.processes.events import MOST, Follower, NodeReport, Restarts, read_event


def supervisor(**deaths):
    tended = {name: SimpleNamespace(deaths=number) for name, number in deaths.items()}
    return SimpleNamespace(tended=tended, tail=lambda name, lines: "killed \x1b[2J")


def test_a_log_is_followed_from_now_on(tmp_path):
    path = tmp_path / "server.log"
    path.write_text("old\n")
    follower = Follower(path)
    assert list(follower.lines()) == []
    with path.open("a") as log:
        log.write("one\ntw")
        log.flush()
        assert list(follower.lines()) == ["one"]
        log.write("o\nthree \x1b[31m\x07red\n")
    assert list(follower.lines()) == ["two", "three red"]
    assert list(follower.lines()) == []


def test_a_log_that_is_not_there_yet_or_is_replaced_is_followed(tmp_path):
    path = tmp_path / "server.log"
    follower = Follower(path)
    assert list(follower.lines()) == []
    path.write_text("first\n")
    assert list(follower.lines()) == ["first"]
    path.rename(tmp_path / "server.log.1")
    path.write_text("second\n")
    assert list(follower.lines()) == ["second"]
    path.write_text("x\n")  # shorter than before
    assert list(follower.lines()) == ["x"]


def test_a_line_without_an_end_does_not_stop_it(tmp_path):
    path = tmp_path / "server.log"
    follower = Follower(path)
    path.write_text("a" * (MOST + 10) + "\nb\n")
    assert len(next(iter(follower.lines()))) == MOST
    assert list(follower.lines()) == ["a" * 10, "b"]


def test_restarts_are_told_once():
    restarts = Restarts()
    assert list(restarts.look(supervisor(gate=0))) == []
    assert list(restarts.look(supervisor(gate=2))) == ["gate ended and is started again (2 so far): killed [2J"]
    assert list(restarts.look(supervisor(gate=2))) == []


def test_a_node_tells_one_line_per_message_and_its_warnings():
    log = (
        "2026-11-17 19:14:52,938 INFO answered the server's hello",
        "2026-11-17 19:14:55,938 WARNING a message is dropped: KeyError",
        "WARN :      no   connection",
        "INFO :      Starting",
        "Traceback (most recent call last):",
    )
    told = [event for line in log if (event := read_event(line))]
    assert told == ["answered the server's hello", "WARNING a message is dropped: KeyError", "WARN : no connection"]


def test_a_node_says_whether_its_device_is_there(tmp_path):
    socket, log = tmp_path / "d.sock", tmp_path / "node.log"
    report = NodeReport(log, socket, "a.example:9092")
    first = list(report.look(supervisor()))
    assert first == [
        "the node speaks to a.example:9092",
        f"the device's socket {socket} is not there: start the device",
    ]
    assert list(report.look(supervisor())) == []
    socket.touch()
    log.write_text("ERROR :     refused\n")
    assert list(report.look(supervisor(node=1)))[:2] == [f"the device's socket {socket} is there", "ERROR : refused"]
