"""A run that has died is submitted again, one that only waits is left alone."""

from __future__ import annotations

import json
import socket
import stat
import time

import pytest

pytest.importorskip("flwr")

from fedctta.errors import UserError
from fedctta.fleet.processes import serve as module
from fedctta.fleet.processes.process_specs import Link, free_port
from fedctta.fleet.processes.serve import lead, require_free, start_server
from fedctta.fleet.server.ledger import Ledger, at_work, write_failure
from fedctta.fleet.server.plan import write_plan


class Supervisor:
    all_done = False

    def tend(self):
        pass


class Flower:
    """Plays a server: every submitted run writes its first status; `alive` is what the SuperLink believes."""

    keyring = None

    def __init__(self, state, alive=True, holds=False):
        self.state, self.alive, self.submitted, self.asked = state, alive, 0, 0
        self.ledger = Ledger(state, "me") if holds else None

    def submit(self, plan):
        self.submitted += 1
        write_status(self.state, "collecting" if self.submitted == 1 else "finished", self.submitted)
        return str(self.submitted)

    def running(self, run):
        self.asked += 1
        if self.asked == 3 and self.ledger is not None:
            write_status(self.state, "finished", 2)
        return self.alive


def write_status(state, doing, round_):
    state.mkdir(exist_ok=True)
    time.sleep(0.01)
    (state / "status.json").write_text(json.dumps({"doing": doing, "round": round_, "written": time.time()}))


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "GONE", 0.2)
    monkeypatch.setattr(module, "SILENCE", 0.2)
    path = tmp_path / "fleet.toml"
    path.write_text(write_plan({"state": "server", "rounds": 2}, {"dataset": "shapes-c"}))
    return path


def test_a_killed_server_is_not_waited_for_until_flower_misses_it(tmp_path, plan):
    flower = Flower(tmp_path / "server")
    assert lead(Supervisor(), flower, plan, lambda *_: None)["doing"] == "finished"
    assert (flower.submitted, flower.asked) == (2, 0)


@pytest.mark.parametrize("alive", [True, False])
def test_a_silent_server_that_lives_is_left_alone_unless_flower_has_ended_it(tmp_path, plan, alive):
    flower = Flower(tmp_path / "server", alive, holds=True)
    assert lead(Supervisor(), flower, plan, lambda *_: None)["doing"] == "finished"
    assert (flower.submitted, flower.asked) == ((1, 3) if alive else (2, 1))
    flower.ledger.close()


def test_devices_whose_data_have_ended_are_told(tmp_path, plan, monkeypatch):
    monkeypatch.setattr(module, "ENDED", -30.0)
    monkeypatch.setattr(Supervisor, "all_done", True)
    with pytest.raises(UserError, match="end of their data after 1 rounds"):
        lead(Supervisor(), Flower(tmp_path / "server", holds=False), plan, lambda *_: None)


@pytest.mark.parametrize("shift", [-86400.0, 86400.0])
def test_a_dead_server_is_noticed_when_the_wall_clock_is_set(tmp_path, plan, shift):
    """The status of a server that died was written by another clock than the one that is looked at now."""

    class Shifted(Flower):
        def submit(self, plan):
            run = super().submit(plan)
            if self.submitted == 1:
                path = self.state / "status.json"
                path.write_text(json.dumps({**json.loads(path.read_text()), "written": time.time() - shift}))
            return run

    flower = Shifted(tmp_path / "server")
    until = time.monotonic() + 60

    def watch(*_):
        assert time.monotonic() < until, "the dead server was not noticed"

    assert lead(Supervisor(), flower, plan, watch)["doing"] == "finished"
    assert flower.submitted == 2


def test_what_only_the_user_can_put_right_is_said_and_not_tried_again(tmp_path, plan):
    class Fails(Flower):
        def submit(self, plan):
            super().submit(plan)
            write_failure(self.state, "checkpoint.safetensors is damaged: delete it")
            return "1"

    flower = Fails(tmp_path / "server")
    with pytest.raises(UserError, match="is damaged: delete it"):
        lead(Supervisor(), flower, plan, lambda *_: None)
    assert flower.submitted == 1


def test_a_failure_of_an_earlier_start_is_forgotten(tmp_path, plan):
    (tmp_path / "server").mkdir()
    write_failure(tmp_path / "server", "it was so")
    assert lead(Supervisor(), Flower(tmp_path / "server"), plan, lambda *_: None)["doing"] == "finished"


def test_a_server_that_has_not_made_its_folder_yet_is_waited_for(tmp_path, plan):
    class Late(Flower):
        def submit(self, plan):
            return "1"

        def running(self, run):
            self.asked += 1
            if self.asked == 2:
                write_status(self.state, "finished", 2)
            return True

    assert lead(Supervisor(), Late(tmp_path / "server"), plan, lambda *_: None)["doing"] == "finished"


def test_a_full_disk_is_said(tmp_path, plan, monkeypatch, caplog):
    monkeypatch.setattr(module, "LEAST", 1 << 60)
    lead(Supervisor(), Flower(tmp_path / "server"), plan, lambda *_: None)
    assert f"the disk of {tmp_path / 'server'} is full" in caplog.text


def test_a_plan_that_has_become_wrong_is_said(tmp_path, plan):
    def watch(*_):
        plan.write_text("[fleet]\nround = 3\n")

    with pytest.raises(UserError, match="did you mean rounds"):
        lead(Supervisor(), Flower(tmp_path / "server", alive=True, holds=True), plan, watch)


def test_who_is_at_work(tmp_path):
    assert not at_work(tmp_path)
    ledger = Ledger(tmp_path, "me")
    assert at_work(tmp_path)
    ledger.close()
    assert not at_work(tmp_path)


def test_a_port_of_somebody_else_is_refused_before_anything_is_started(tmp_path):
    class Nothing:
        def start(self, part):
            pytest.fail("nothing may be started")

    with socket.create_server(("127.0.0.1", 0)) as other:
        taken, free = other.getsockname()[1], free_port()
        with pytest.raises(UserError, match=rf"127\.0\.0\.1:{taken}: Address already in use; .*--port"):
            start_server(Nothing(), Link("127.0.0.1", taken, None), tmp_path, [])
        with pytest.raises(UserError, match="--listen"):
            start_server(Nothing(), Link("127.0.0.1", free, None), tmp_path, [], ("127.0.0.1", taken))
    require_free("127.0.0.1", taken, "--port")


def test_what_flower_keeps_is_its_users_alone(tmp_path):
    class Stops:
        def start(self, part):
            raise InterruptedError

    with pytest.raises(InterruptedError):
        start_server(Stops(), Link("127.0.0.1", free_port(), None), tmp_path / "f", [])
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o700
