"""Rounds go on without those who do not answer, and a round that was not written down is played again."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parents[1]))

from flwr.app import Array, ArrayRecord, Message, RecordDict
from pretend import assemble, context_of, make_devices, simulated

from fedctta.errors import NoRoom, UserError
from fedctta.fleet.server import conductor
from fedctta.fleet.server.conductor import check_place, open_ledger
from fedctta.fleet.server.ledger import FolderTaken, Ledger, read_collaboration
from fedctta.fleet.server.plan import build, load_plan
from fedctta.fleet.server.server_app import app
from fedctta.fleet.server.status_table import headline, read_status
from fedctta.fleet.simulation.grid import InProcessGrid
from fedctta.fleet.transport import wire


def test_who_does_not_answer_costs_one_deadline_and_not_one_a_round(tmp_path, monkeypatch):
    federation, stream = assemble(aggregator="fedavg")
    devices = make_devices(federation, stream, 7)

    def late(message):
        about = message.metadata
        return about.dst_node_id == 102 and about.message_type == "train.step"

    now = count()
    monkeypatch.setattr(conductor, "time", SimpleNamespace(monotonic=lambda: float(next(now))))  # a second per look
    fleet = {"rounds": 6, "lockstep": False, "deadline": 300.0, "patience": 0}
    app(InProcessGrid(devices, late), context_of(tmp_path, fleet, aggregator="fedavg"))
    seconds = [line["seconds"] for line in read_status(tmp_path / "server")["history"]]
    assert [length >= 300.0 for length in seconds] == [True] + [False] * 5
    assert next(now) < 900  # one for the first round, one for the last delivery
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


def with_nothing(device, said):
    """A device that has nothing for as long as `said` says so, and how often it was asked."""
    asked = []

    def answer(message):
        request = wire.unpack(message.content.array_records["parcel"]["parcel"].numpy(), 1 << 30)
        if request.kind == "step" and request.note["ask"]:
            asked.append(request.round)
            if said(asked):
                flat = wire.pack(wire.Parcel("nothing", request.round, {"reason": "the device has seen no batch yet"}))
                return Message(RecordDict({"parcel": ArrayRecord({"parcel": Array(flat)})}), reply_to=message)
        return device(message)

    return answer, asked


def test_devices_that_have_nothing_are_asked_again_in_the_same_round(tmp_path):
    """One outage of all devices must not end the fleet."""
    federation, stream = assemble(aggregator="fedavg")
    devices = make_devices(federation, stream, 4)
    told = {node: with_nothing(device, lambda asked: len(asked) < 4) for node, device in devices.items()}
    fleet = {"rounds": 2, "lockstep": False, "deadline": 60.0, "patience": 3.0}
    app(
        InProcessGrid({node: answer for node, (answer, _) in told.items()}),
        context_of(tmp_path, fleet, aggregator="fedavg"),
    )
    assert all(asked[:4] == [0, 0, 0, 0] for _, asked in told.values())
    assert (read_collaboration(tmp_path / "server", 0)[0] > 0).sum() > 4


def test_a_round_with_nobody_is_closed_empty_and_says_so(tmp_path, caplog):
    federation, stream = assemble(aggregator="fedavg")
    devices = make_devices(federation, stream, 6)
    told = {node: with_nothing(device, lambda asked: asked[-1] < 2) for node, device in devices.items()}
    fleet = {"rounds": 3, "lockstep": False, "deadline": 0.1, "patience": 3.0}
    app(
        InProcessGrid({node: answer for node, (answer, _) in told.items()}),
        context_of(tmp_path, fleet, aggregator="fedavg"),
    )
    for empty in range(2):
        assert torch.equal(read_collaboration(tmp_path / "server", empty)[0], torch.eye(4))
        assert f"round {empty}: nobody had an upload" in caplog.text
    assert read_collaboration(tmp_path / "server", 2)[0][0].tolist() == pytest.approx([1 / 4] * 4)
    assert read_status(tmp_path / "server")["empty_rounds"] == 2
    assert "2 empty" in headline(read_status(tmp_path / "server"))


def test_a_round_in_which_all_are_refused_is_closed(tmp_path):
    federation, stream = assemble(aggregator="fedavg")

    def lie(reply):
        return replace(reply, round=reply.round + 7) if reply.kind == "upload" and reply.round == 0 else reply

    devices = make_devices(federation, stream, 4, dict.fromkeys(range(4), lie))
    fleet = {"rounds": 2, "lockstep": False, "deadline": 0.1, "patience": 3.0}
    app(InProcessGrid(devices), context_of(tmp_path, fleet, aggregator="fedavg"))
    assert read_status(tmp_path / "server")["refused"] == 4
    assert torch.equal(read_collaboration(tmp_path / "server", 0)[0], torch.eye(4))


def test_a_round_goes_on_when_everybody_left_and_came_back(tmp_path):
    federation, stream = assemble(aggregator="fedavg")
    devices = make_devices(federation, stream, 4)

    class Gone(InProcessGrid):
        looks = 0

        def get_node_ids(self):
            self.looks += 1
            return [] if 5 < self.looks < 60 else super().get_node_ids()

    fleet = {"rounds": 6, "lockstep": False, "deadline": 0.02, "patience": 3.0}
    app(Gone(devices), context_of(tmp_path, fleet, aggregator="fedavg"))
    assert read_status(tmp_path / "server")["round"] == 6


def test_a_full_disk_is_waited_for_and_no_round_is_lost(tmp_path, monkeypatch, caplog):
    federation, stream = assemble(aggregator="fedavg")
    devices, tries = make_devices(federation, stream, 4), []
    monkeypatch.setattr(conductor, "ROOM", 0.01)

    def fills(moment, kept):
        def write(ledger, *words):
            tries.append(moment)
            if tries.count(moment) in (2, 3):
                raise NoRoom(f"cannot write {moment}: No space left on device")
            kept(ledger, *words)

        return write

    for moment in ("save", "write_collaboration", "write_status"):
        monkeypatch.setattr(Ledger, moment, fills(moment, getattr(Ledger, moment)))
    app(InProcessGrid(devices), context_of(tmp_path, {"rounds": 3, "lockstep": False}, aggregator="fedavg"))
    assert read_status(tmp_path / "server")["doing"] == "finished"
    assert [read_collaboration(tmp_path / "server", t)[1] for t in range(3)] == [[f"device-{k}" for k in range(4)]] * 3
    for moment in ("save", "write_collaboration"):
        assert caplog.text.count(f"cannot write {moment}: No space left on device; the fleet waits") == 1


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "server" / "checkpoint.safetensors").write_bytes(b"no tensors"), "is damaged"),
        (lambda folder: context_of(folder, {"rounds": 4, "max_devices": 5}), "belongs to other settings"),
    ],
)
def test_a_place_that_cannot_be_continued_is_left_word_of(tmp_path, spoil, said):
    federation, stream = assemble(aggregator="fedctta")
    devices = make_devices(federation, stream, 4)
    context = context_of(tmp_path, {"rounds": 2})
    app(InProcessGrid(devices), context)
    spoil(tmp_path)
    with pytest.raises(UserError, match=said):
        app(InProcessGrid(devices), context)
    status = read_status(tmp_path / "server")
    assert status["doing"] == "failed"
    assert said in status["reason"]
    plan = load_plan(tmp_path / "fleet.toml")
    with pytest.raises(UserError, match=said):
        check_place(plan, build(plan)[0])


def test_a_place_that_is_taken_is_not_called_a_failure(tmp_path):
    federation, stream = assemble(aggregator="fedctta")
    devices = make_devices(federation, stream, 4)
    context = context_of(tmp_path, {"rounds": 2})
    app(InProcessGrid(devices), context)
    holder = open_ledger(load_plan(tmp_path / "fleet.toml"))
    with pytest.raises(FolderTaken):
        app(InProcessGrid(devices), context)
    assert read_status(tmp_path / "server")["doing"] == "finished"
    holder.close()


def test_a_place_that_is_taken_is_refused_also_before_its_first_round(tmp_path):
    context_of(tmp_path, {"rounds": 2})
    plan = load_plan(tmp_path / "fleet.toml")
    hub = build(plan)[0]
    check_place(plan, hub)
    assert not Path(plan.state).exists()
    holder = open_ledger(plan)
    with pytest.raises(FolderTaken, match="another server works in"):
        check_place(plan, hub)
    holder.close()
    check_place(plan, hub)


def test_what_the_server_keeps_is_its_users_alone(tmp_path):
    federation, stream = assemble(aggregator="fedavg")
    devices = make_devices(federation, stream, 4, {1: lambda reply: replace(reply, kind="hello")})
    before = os.umask(0)
    try:
        fleet = {"rounds": 2, "lockstep": False, "deadline": 0.1}
        app(InProcessGrid(devices), context_of(tmp_path, fleet, aggregator="fedavg"))
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "server").rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"checkpoint.safetensors", "status.json", "refusals.jsonl", "server.log"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
