"""Rounds go on without those who do not answer, and a round that was not written down is played again."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parents[1]))

from pretend import assemble, context_of, make_devices, simulated

from fedctta.fleet.server.ledger import Ledger, read_collaboration
from fedctta.fleet.server.server_app import app
from fedctta.fleet.simulation.grid import InProcessGrid


def test_who_does_not_answer_costs_one_deadline_and_not_one_a_round(tmp_path):
    federation, stream = assemble(aggregator="fedavg")
    devices = make_devices(federation, stream, 7)

    def late(message):
        about = message.metadata
        return about.dst_node_id == 102 and about.message_type == "train.step"

    began = time.monotonic()
    fleet = {"rounds": 6, "lockstep": False, "deadline": 1.0}
    app(InProcessGrid(devices, late), context_of(tmp_path, fleet, aggregator="fedavg"))
    assert time.monotonic() - began < 5.0  # one for the first round, one for the last delivery
    for t in range(6):
        assert read_collaboration(tmp_path / "server", t)[0][0].tolist() == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])


def test_a_quorum_is_waited_for_even_if_most_are_late(tmp_path):
    federation, stream = assemble(aggregator="fedavg")
    devices = make_devices(federation, stream, 7)
    looks = []

    def late(message):
        about = message.metadata
        if about.dst_node_id == 103 or about.message_type != "train.step" or about.group_id != "1":
            return False
        looks.append(message)
        return len(looks) < 100

    fleet = {"rounds": 3, "lockstep": False, "deadline": 0.05}
    app(InProcessGrid(devices, late), context_of(tmp_path, fleet, aggregator="fedavg"))
    assert len(looks) >= 100
    assert int((read_collaboration(tmp_path / "server", 1)[0][0] > 0).sum()) >= 2


@pytest.mark.parametrize("moment", ["save", "write_collaboration"])
def test_no_round_is_lost_wherever_the_server_dies_in_writing_it_down(tmp_path, monkeypatch, moment):
    rounds = 4
    federation, stream = assemble(aggregator="fedctta")
    expected, weights = simulated(federation, stream, rounds)
    devices = make_devices(federation, stream, rounds)
    context, kept = context_of(tmp_path, {"rounds": rounds}), getattr(Ledger, moment)

    def dies(ledger, first, *rest):
        if (first if moment == "write_collaboration" else first.round - 1) == 2:
            raise ConnectionError("power cut")
        kept(ledger, first, *rest)

    monkeypatch.setattr(Ledger, moment, dies)
    with pytest.raises(ConnectionError):
        app(InProcessGrid(devices), context)
    monkeypatch.setattr(Ledger, moment, kept)
    app(InProcessGrid(devices), context)
    for t in range(rounds):
        torch.testing.assert_close(read_collaboration(tmp_path / "server", t)[0], weights[t], atol=1e-4, rtol=0)
    last = torch.stack([device.predictions[-1] for device in sorted(devices.values(), key=lambda d: d.name)])
    assert torch.equal(last, expected[-1])
