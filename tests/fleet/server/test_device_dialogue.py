"""Who was refused is given nothing for it, and keeps the model it has."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parents[1]))

from pretend import assemble, context_of, make_devices

from fedctta.fleet.agreement import terms_of
from fedctta.fleet.server.audit import read_audit
from fedctta.fleet.server.bindings import write_bindings
from fedctta.fleet.server.device_dialogue import facts_in
from fedctta.fleet.server.server_app import app
from fedctta.fleet.simulation.grid import InProcessGrid
from fedctta.fleet.transport import wire

LIAR = 101  # device-2's node


def recorded(device, log):
    """Write down which models a device is sent."""

    def answer(message):
        request = wire.unpack(message.content.array_records["parcel"]["parcel"].numpy(), 1 << 30)
        if request.kind == "step":
            log.append((request.round, request.note.get("download"), bool(request.arrays)))
        return device(message)

    return answer


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_refused_device_gets_no_model_of_that_round(tmp_path, lockstep):
    federation, stream = assemble(aggregator="fedavg")

    def lie(reply):
        if reply.kind != "upload" or reply.round != 1:
            return reply
        return replace(reply, arrays={name: array + np.float32("inf") for name, array in reply.arrays.items()})

    devices, log = make_devices(federation, stream, 6, {2: lie}), []
    nodes = {**devices, LIAR: recorded(devices[LIAR], log)}
    app(InProcessGrid(nodes), context_of(tmp_path, {"rounds": 4, "lockstep": lockstep}, aggregator="fedavg"))
    assert next(entry for entry in log if entry[0] == 1)[1:] == (0, True)
    assert all(entry[1:] == (None, False) for entry in log if entry[0] == 2)
    assert [entry[1] for entry in log if entry[0] >= 3] == [2, 3]
    assert {entry[1] for entry in log} == {None, 0, 2, 3}


def test_what_devices_tell_of_their_health_is_in_the_status(tmp_path, caplog):
    federation, stream = assemble(aggregator="fedavg")

    def tell(reply):
        alarms = {"health.alarms": int(reply.round > 1), "health.answers": "source", "health.accuracy": 7}
        return replace(reply, note={**reply.note, **alarms})

    devices = make_devices(federation, stream, 4, {2: tell})
    app(InProcessGrid(devices), context_of(tmp_path, {"rounds": 3}, aggregator="fedavg"))
    nodes = json.loads((tmp_path / "server" / "status.json").read_text())["nodes"]
    assert [node["health"] for node in nodes] == [{}, {}, {"alarms": 1, "answers": "source"}, {}]
    assert caplog.text.count("device-2 has raised an alarm") == 1


def test_a_device_that_was_away_for_long_goes_on_by_itself(tmp_path):
    """Free-running, a model of many rounds ago would only set a device back."""
    federation, stream = assemble(aggregator="fedavg")
    devices, log = make_devices(federation, stream, 12), []
    nodes = {**devices, LIAR: recorded(devices[LIAR], log)}

    class Away(InProcessGrid):
        def push_messages(self, messages):
            for message in (messages := list(messages)):
                round_ = int(message.metadata.group_id)
                self.nodes = {n: nodes[n] for n in nodes if n != LIAR or not 1 <= round_ <= 5}
            return super().push_messages(messages)

    fleet = {"rounds": 9, "lockstep": False, "deadline": 1.0}
    app(Away(nodes), context_of(tmp_path, fleet, aggregator="fedavg"))
    back = [entry for entry in log if entry[0] > 5]
    assert back[0][1:] == (None, False)
    assert back[1][1] is not None


def test_a_device_that_does_not_answer_is_not_online(tmp_path):
    federation, stream = assemble(aggregator="fedavg")

    def dies(reply):
        note = {key: reply.note[key] for key in ("run", "nonce") if key in reply.note}
        dead = reply.round > 0
        return wire.Parcel("nothing", reply.round, {**note, "reason": "no device answers at x"}) if dead else reply

    devices = make_devices(federation, stream, 4, {2: dies})
    fleet = {"rounds": 3, "lockstep": False, "deadline": 0.5}
    app(InProcessGrid(devices), context_of(tmp_path, fleet, aggregator="fedavg"))
    nodes = json.loads((tmp_path / "server" / "status.json").read_text())["nodes"]
    assert [node["online"] for node in nodes] == [True, True, False, True]
    assert [node["silence"] for node in nodes] == ["", "", "no device answers at x", ""]
    assert [node["last_round"] for node in nodes] == [2, 2, 0, 2]


def test_who_leaves_after_its_device_did_is_offline(tmp_path):
    federation, stream = assemble(aggregator="fedavg")

    def dies(reply):
        dead = replace(reply, kind="nothing", note={"reason": "no device answers at x"}, arrays={})
        return dead if reply.round == 1 else reply

    class Leaves(InProcessGrid):
        def push_messages(self, messages):
            for message in (messages := list(messages)):
                self.nodes = {n: d for n, d in devices.items() if n != LIAR or int(message.metadata.group_id) < 2}
            return super().push_messages(messages)

    devices = make_devices(federation, stream, 4, {2: dies})
    fleet = {"rounds": 3, "lockstep": False, "deadline": 0.5}
    app(Leaves(devices), context_of(tmp_path, fleet, aggregator="fedavg"))
    node = json.loads((tmp_path / "server" / "status.json").read_text())["nodes"][2]
    assert (node["online"], node["silence"], node["last_round"]) == (False, "", 0)


def test_a_key_cannot_say_anothers_name(tmp_path):
    """Nodes 103 to 101 are devices 0 to 2; the key of node 100 is device-3's, and says it is device-0."""
    federation, stream = assemble(aggregator="fedavg")
    devices = make_devices(federation, stream, 4)
    devices[100].name = "device-0"
    write_bindings(tmp_path / "server", {103 - k: (f"device-{k}", "") for k in range(4)})
    fleet = {"rounds": 3, "devices": 3, "deadline": 1.0, "lockstep": False}
    app(InProcessGrid(devices), context_of(tmp_path, fleet, aggregator="fedavg"))
    status = json.loads((tmp_path / "server" / "status.json").read_text())
    assert [node["device"] for node in status["nodes"]] == ["device-0", "device-1", "device-2"]
    assert [node["node"] for node in status["nodes"]] == ["103", "102", "101"]
    assert status["refused"] > 0
    told = json.loads((tmp_path / "server" / "refusals.jsonl").read_text().splitlines()[0])
    assert (told["device"], told["node"]) == ("device-3", "100")
    reason = "the key of 'device-3' says that it is 'device-0': start the device with --name device-3"
    assert told["reason"] == reason


def test_a_node_cannot_change_its_name_later(tmp_path):
    federation, stream = assemble(aggregator="fedavg")

    def borrow(reply):
        return reply if reply.round not in (2, 3) else replace(reply, note={**reply.note, "device": "device-0"})

    devices = make_devices(federation, stream, 4, {2: borrow})
    write_bindings(tmp_path / "server", {103 - k: (f"device-{k}", "") for k in range(4)})
    app(InProcessGrid(devices), context_of(tmp_path, {"rounds": 4, "lockstep": False}, aggregator="fedavg"))
    told = [json.loads(line) for line in (tmp_path / "server" / "refusals.jsonl").read_text().splitlines()]
    assert {(line["device"], line["round"]) for line in told} == {("device-2", 2), ("device-2", 3)}


def test_a_key_that_is_no_longer_let_in_is_put_out_of_the_round(tmp_path):
    federation, stream = assemble(aggregator="fedavg")
    state = tmp_path / "server"

    def revoke(reply):
        if reply.round == 1:
            write_bindings(state, {103 - k: (f"device-{k}", "") for k in (0, 1, 3)})
        return reply

    devices = make_devices(federation, stream, 4, {2: revoke})
    write_bindings(state, {103 - k: (f"device-{k}", "") for k in range(4)})
    app(InProcessGrid(devices), context_of(tmp_path, {"rounds": 3, "lockstep": False}, aggregator="fedavg"))
    status = json.loads((state / "status.json").read_text())
    assert [line["device"] for line in status["nodes"] if line["node"]] == ["device-0", "device-1", "device-3"]
    assert status["expected"] == ["device-0", "device-1", "device-3"]
    assert "its key is no longer let in" in (state / "refusals.jsonl").read_text()
    revoked = [line for line in read_audit(state) if line["event"] == "revoked"]
    assert [(line["device"], line["node"]) for line in revoked] == [("device-2", "101")]


@pytest.mark.parametrize("version", ["", "x" * 101, "0.8\n0", "\x1b[2J", 8, 1.5])
def test_what_cannot_be_a_version_is_not_shown(version):
    assert facts_in({"version": version, "model": "resnet8", "other": "x"}) == {"model": "resnet8"}


def test_reasons_of_devices_are_one_line_of_plain_text_in_the_log(tmp_path):
    federation, stream = assemble(aggregator="fedavg")

    def tell(reply):
        if reply.kind != "upload" or reply.round != 1:
            return reply
        reason = "\n2026-01-01 00:00:00,000 INFO thief joined\x1b[2J"
        return wire.Parcel("nothing", reply.round, {**reply.note, "reason": reason})

    devices = make_devices(federation, stream, 4, {2: tell})
    app(InProcessGrid(devices), context_of(tmp_path, {"rounds": 2, "lockstep": False}, aggregator="fedavg"))
    lines = (tmp_path / "server" / "server.log").read_text().split("\n")
    assert sum("thief" in line for line in lines) >= 1
    assert all("device-2 has nothing" in line for line in lines if "thief" in line)
    assert "\x1b" not in "".join(lines)


def test_a_device_that_has_nothing_again_and_again_is_one_event(tmp_path, caplog):
    caplog.set_level("INFO", "fedctta.fleet")
    federation, stream = assemble(aggregator="fedavg")
    calls = []

    def sleepy(reply):
        if reply.kind != "upload" or len(calls) >= 5:
            return reply
        calls.append(reply)
        return wire.Parcel("nothing", reply.round, {"reason": "asleep"})

    devices = make_devices(federation, stream, 2, {2: sleepy})
    app(InProcessGrid(devices), context_of(tmp_path, {"rounds": 1}, aggregator="fedavg"))
    assert len(calls) == 5
    assert [line for line in caplog.messages if "asleep" in line] == ["device-2 has nothing: asleep"]


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"weights": "0" * 32}, "the device's model has other weights (00000000) than the server's"),
        ({"adapter_parameters": '{"momentum": 0.3}'}, "the device has bn.momentum=0.3, the server bn.momentum=1.0"),
        ({"weights": 0}, "the device does not tell its weights: install the server's fedctta"),  # an older version
    ],
)
def test_a_device_that_is_started_anew_with_something_else_is_refused_behind_the_same_node(tmp_path, now, said):
    federation, stream = assemble(aggregator="fedavg")

    def restart(reply):
        return reply if reply.kind != "upload" or reply.round != 1 else replace(reply, note={**reply.note, **now})

    devices, log = make_devices(federation, stream, 4, {2: restart}), []
    nodes = {**devices, LIAR: recorded(devices[LIAR], log)}
    app(InProcessGrid(nodes), context_of(tmp_path, {"rounds": 3, "lockstep": False}, aggregator="fedavg"))
    told = [json.loads(line) for line in (tmp_path / "server" / "refusals.jsonl").read_text().splitlines()]
    assert [(line["device"], line["round"]) for line in told] == [("device-2", 1)]
    assert said in told[0]["reason"]
    assert [entry[1] for entry in log if entry[0] == 2] == [0]  # it was not believed to have got its model either


def test_another_patch_version_after_a_restart_is_told_once_and_shown(tmp_path, caplog):
    federation, stream = assemble(aggregator="fedavg")
    version = ".".join([*terms_of(federation.network, federation.adapter)["version"].split(".")[:2], "99"])

    def update(reply):
        return reply if reply.kind != "upload" else replace(reply, note={**reply.note, "version": version})

    devices = make_devices(federation, stream, 4, {2: update})
    app(InProcessGrid(devices), context_of(tmp_path, {"rounds": 3}, aggregator="fedavg"))
    assert caplog.text.count(f"device-2 takes part: the device has fedctta {version}") == 1
    nodes = json.loads((tmp_path / "server" / "status.json").read_text())["nodes"]
    assert nodes[2]["facts"]["version"] == version
