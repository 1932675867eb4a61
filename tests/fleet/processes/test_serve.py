"""A run that has died is submitted again, one that only waits is left alone."""

from __future__ import annotations

import json
import time

import pytest

pytest.importorskip("flwr")

from fedctta.errors import UserError
from fedctta.fleet.processes import serve as module
from fedctta.fleet.processes.serve import lead
from fedctta.fleet.server.ledger import Ledger, at_work
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


def test_who_is_at_work(tmp_path):
    assert not at_work(tmp_path)
    ledger = Ledger(tmp_path, "me")
    assert at_work(tmp_path)
    ledger.close()
    assert not at_work(tmp_path)
