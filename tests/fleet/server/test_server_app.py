"""The real ServerApp, with devices in this process, does what the simulator does; and what is wrong is refused."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parents[1]))

from pretend import assemble, context_of, make_devices, simulated

from fedctta.fleet.server.ledger import read_collaboration
from fedctta.fleet.server.server_app import app
from fedctta.fleet.simulation.grid import InProcessGrid


def refusals(folder):
    return [json.loads(line) for line in (folder / "server" / "refusals.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["fedavg", "fedctta", "fedtsa", "pfedbbn"])
def test_lock_step_is_the_simulator(tmp_path, name):
    rounds = 5
    run = {"aggregator": name, **({"fedtsa.epochs": 20} if name == "fedtsa" else {})}
    federation, stream = assemble(**run)
    expected, weights = simulated(federation, stream, rounds)
    devices = make_devices(federation, stream, rounds)
    app(InProcessGrid(devices), context_of(tmp_path, {"rounds": rounds}, **run))
    ordered = sorted(devices.values(), key=lambda device: device.name)
    for t in range(rounds):
        found, names = read_collaboration(tmp_path / "server", t)
        assert names == [device.name for device in ordered]
        torch.testing.assert_close(found, weights[t], atol=1e-4, rtol=0)
        assert torch.equal(torch.stack([device.predictions[t] for device in ordered]), expected[t])
    status = json.loads((tmp_path / "server" / "status.json").read_text())
    assert (status["doing"], status["round"], status["refused"]) == ("finished", rounds, 0)
    assert status["bytes_up"] > 0 < status["bytes_down"]


def test_a_server_that_dies_goes_on_with_its_round(tmp_path):
    rounds = 6
    federation, stream = assemble(aggregator="fedctta")
    expected, weights = simulated(federation, stream, rounds)
    devices = make_devices(federation, stream, rounds)

    class Dies(InProcessGrid):
        def pull_messages(self, message_ids):
            answers = super().pull_messages(message_ids)
            if any(m.metadata.group_id == "3" and m.metadata.message_type == "train.step" for m in answers):
                raise ConnectionError("power cut")
            return answers

    context = context_of(tmp_path, {"rounds": rounds})
    with pytest.raises(ConnectionError):
        app(Dies(devices), context)
    app(InProcessGrid(devices), context)
    torch.testing.assert_close(read_collaboration(tmp_path / "server", 5)[0], weights[5], atol=1e-4, rtol=0)
    ordered = sorted(devices.values(), key=lambda device: device.name)
    assert [len(device.predictions) for device in ordered] == [rounds] * 4
    assert torch.equal(torch.stack([device.predictions[-1] for device in ordered]), expected[-1])


def test_in_lock_step_who_leaves_is_waited_for(tmp_path):
    rounds = 4
    federation, stream = assemble(aggregator="fedctta")
    expected, _ = simulated(federation, stream, rounds)
    devices = make_devices(federation, stream, rounds)

    class Absence(InProcessGrid):
        looks = 0

        def push_messages(self, messages):
            messages = list(messages)
            if self.looks == 0 and any((m.metadata.group_id, m.metadata.dst_node_id) == ("2", 102) for m in messages):
                self.looks = 10
                del self.nodes[102]
            return super().push_messages(messages)

        def get_node_ids(self):
            if self.looks > 1:
                self.looks -= 1
                self.nodes = dict(devices) if self.looks == 1 else self.nodes
            return super().get_node_ids()

    grid = Absence(devices)
    app(grid, context_of(tmp_path, {"rounds": rounds}, aggregator="fedctta"))
    assert grid.looks == 1  # it left, and came back
    ordered = sorted(devices.values(), key=lambda device: device.name)
    for t in range(rounds):
        assert torch.equal(torch.stack([device.predictions[t] for device in ordered]), expected[t])


def nan(reply):
    if reply.kind != "upload":
        return reply
    return replace(reply, arrays={name: array * np.float32("nan") for name, array in reply.arrays.items()})


def test_a_lying_device_is_refused_logged_and_put_in_quarantine(tmp_path):
    federation, stream = assemble(aggregator="fedavg")
    devices = make_devices(federation, stream, 5, {2: nan})
    fleet = {"rounds": 5, "lockstep": False, "quarantine": 2, "quarantine_rounds": 2, "deadline": 2.0}
    app(InProcessGrid(devices), context_of(tmp_path, fleet, aggregator="fedavg"))
    lines = refusals(tmp_path)
    assert {line["device"] for line in lines} == {"device-2"}
    assert all("not finite" in line["reason"] for line in lines)
    assert [line["round"] for line in lines] == [0, 1, 4]
    assert lines[1]["quarantined"]
    for t in range(5):
        weights, _ = read_collaboration(tmp_path / "server", t)
        assert weights[2].tolist() == [0, 0, 1, 0]
        assert weights[0].tolist() == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])


def test_a_late_upload_counts_less_in_the_round_it_comes_in(tmp_path):
    federation, stream = assemble(aggregator="fedavg")
    devices = make_devices(federation, stream, 5)

    pushed = []

    class Slow(InProcessGrid):
        def push_messages(self, messages):
            messages = list(messages)
            pushed.extend(message.metadata.group_id for message in messages)
            return super().push_messages(messages)

    def late(message):  # the first upload of device-1 comes when round 1 has begun
        about = message.metadata
        first = about.dst_node_id == 102 and (about.message_type, about.group_id) == ("train.step", "0")
        return first and "1" not in pushed

    fleet = {"rounds": 3, "lockstep": False, "deadline": 0.01}
    app(Slow(devices, late), context_of(tmp_path, fleet, aggregator="fedavg"))
    rows = [read_collaboration(tmp_path / "server", t)[0][0].tolist() for t in range(3)]
    assert rows[0] == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])
    assert rows[1] == pytest.approx([2 / 7, 1 / 7, 2 / 7, 2 / 7])
    assert rows[2] == pytest.approx([1 / 4] * 4)


def test_devices_join_leave_and_return(tmp_path):
    federation, stream = assemble(aggregator="fedctta")
    devices = make_devices(federation, stream, 12)
    there = {0: (103, 102), 2: (103, 102, 101, 100), 4: (103, 101), 6: (103, 102, 101, 100)}

    class Comings(InProcessGrid):
        def push_messages(self, messages):
            for message in (messages := list(messages)):
                group = int(message.metadata.group_id)
                self.nodes = {n: devices[n] for n in there[max(t for t in there if t <= group)]}
            return super().push_messages(messages)

    grid = Comings({n: devices[n] for n in there[0]})
    fleet = {"rounds": 9, "devices": 2, "max_devices": 6, "lockstep": False, "deadline": 0.5}
    app(grid, context_of(tmp_path, fleet, aggregator="fedctta"))
    weights, names = read_collaboration(tmp_path / "server", 0)
    assert names == ["device-0", "device-1"]
    assert weights.shape == (2, 2)
    weights, names = read_collaboration(tmp_path / "server", 8)
    assert names == [f"device-{k}" for k in range(4)]
    torch.testing.assert_close(weights.sum(1), torch.ones(4))
    assert (weights > 0).all()


def test_a_plan_is_needed_and_its_words_are_checked(tmp_path):
    from flwr.app import Context, RecordDict

    from fedctta.errors import UserError

    with pytest.raises(UserError, match="does not name its plan"):
        app(InProcessGrid({}), Context(1, 0, {}, RecordDict(), {}))
    path = tmp_path / "fleet.toml"
    path.write_text("[fleet]\nround = 3\n")
    with pytest.raises(UserError, match="did you mean rounds"):
        app(InProcessGrid({}), Context(1, 0, {}, RecordDict(), {"plan": str(path)}))


def test_nobody_answers(tmp_path):
    from fedctta.errors import UserError

    with pytest.raises(UserError, match="no device has answered"):
        app(InProcessGrid({}), context_of(tmp_path, {"patience": 0.1}))
