"""Saving and restoring a run, and which seconds count."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fedctta.adapters import adapters
from fedctta.aggregators import Server, aggregators
from fedctta.core.clients import by_vmap
from fedctta.engine import saving
from fedctta.engine.rounds import Federation
from fedctta.engine.saving import Saver

CPU = torch.device("cpu")


class Tally(SimpleNamespace):
    """Seconds, saved as a tally does."""

    def tensors(self):
        return {"tally.seconds": torch.tensor(self.seconds, dtype=torch.float64)}

    def restore(self, saved, path):
        self.seconds = float(saved["tally.seconds"])


class Witness:
    """Remembers one number."""

    seen = 0.0

    def tensors(self):
        return {"witness": torch.tensor(self.seen)}

    def restore(self, saved, path):
        self.seen = float(saved["witness"])


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(saving, "perf_counter", lambda: clock.now)
    return clock


@pytest.fixture
def state(tiny_network):
    server = Server(tiny_network, by_vmap, 0, (3, 8, 8), 2, lambda count: torch.zeros(count, 3, 8, 8))
    return Federation(adapters.create("bn"), aggregators.create("fedavg"), server).start()


def test_what_is_saved_is_restored(tmp_path, clock, state):
    witness = Witness()
    witness.seen = 7.0
    saver = Saver(tmp_path / "place", "mine", Tally(seconds=0.0), [witness], every=60)
    assert saver.restore(state, CPU)[1] == 0
    clock.now = 5.0
    changed = {name: tensor + 1 for name, tensor in state.clients.own.items()}
    saver.save(state._replace(clients=state.clients._replace(own=changed)), 3)

    tally, other = Tally(seconds=0.0), Witness()
    again, rounds = Saver(tmp_path / "place", "mine", tally, [other], every=60).restore(state, CPU)
    assert (rounds, tally.seconds, other.seen) == (3, 5, 7)
    assert all(torch.equal(again.clients.own[name], tensor) for name, tensor in changed.items())


def test_saving_and_pauses_are_not_counted(tmp_path, clock, state, monkeypatch):
    tally = Tally(seconds=0.0)
    saver = Saver(tmp_path / "place", "mine", tally, [], every=60)
    clock.now = 100.0  # building something before the run
    saver.restore(state, CPU)

    def slow(path, fingerprint, rounds, tensors):
        assert tensors["tally.seconds"] == 3
        clock.now += 50

    monkeypatch.setattr(saving, "save_checkpoint", slow)
    clock.now += 1
    with saver.paused():
        clock.now += 20
    clock.now += 2
    saver.save(state, 1)
    clock.now += 4
    saver.count()
    assert tally.seconds == 1 + 2 + 4


def test_it_saves_when_it_is_due(tmp_path, clock, state, monkeypatch):
    saved = []
    monkeypatch.setattr(saving, "save_checkpoint", lambda path, fingerprint, rounds, tensors: saved.append(rounds))
    saver = Saver(tmp_path / "place", "mine", Tally(seconds=0.0), [], every=10)
    saver.restore(state, CPU)
    for t in range(1, 26):
        clock.now += 1
        saver.save_if_due(state, t)
    assert saved == [11, 22]


def test_without_a_path_nothing_is_saved(clock, state, monkeypatch):
    monkeypatch.setattr(saving, "save_checkpoint", None)
    saver = Saver(None, "", Tally(seconds=0.0), [], every=0)
    assert saver.restore(state, CPU) == (state, 0)
    clock.now = 9.0
    saver.save_if_due(state, 1)
