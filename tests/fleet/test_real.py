"""A fleet of real processes, with TLS and keys, gives what the simulator gives, and strangers stay out.

Three rounds run with the other tests; more of them, with each aggregator, take minutes: make fleet-test.
"""

from __future__ import annotations

import json
import re
import ssl
import sys
import time
from contextlib import suppress
from http.client import HTTPSConnection
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parent))

from pretend import assemble, simulated

from fedctta.fleet.processes.launch import Tryout, up
from fedctta.fleet.processes.process_specs import Link, free_port, node
from fedctta.fleet.processes.serve import start_server
from fedctta.fleet.processes.supervisor import Supervisor
from fedctta.fleet.server.ledger import read_collaboration
from fedctta.fleet.transport.certificates import add_node, make_keys

pytestmark = pytest.mark.usefixtures("alone")
LONG = [("fedctta", 20), ("fedavg", 6), ("fedtsa", 6), ("pfedbbn", 6)]
LONG = [pytest.param(*words, marks=pytest.mark.slow) for words in LONG]


@pytest.mark.parametrize(("name", "rounds"), [("fedctta", 3), *LONG])
def test_lock_step_over_real_processes_is_the_simulator(tmp_path, name, rounds):
    memory, seconds, commands = {}, {}, set()

    def watch(supervisor, status):
        found = (command_of(process) for process in Path("/proc").glob("[0-9]*"))
        commands.update(command for command in found if str(tmp_path) in command)
        seconds[status.get("round")] = status.get("seconds_of_round")
        for part in supervisor.tended:
            memory[part] = max(memory.get(part, 0), supervisor.memory(part) >> 20)

    status = up(Tryout(tmp_path, 4, rounds, {"aggregator": name, "slots": 2}, lockstep=True), watch)
    assert status["round"] == rounds
    assert status["refused"] == 0
    assert any("flwr-serverapp" in command for command in commands) or sys.platform != "linux"
    assert not any(re.search("[0-9a-f]{64}", command) for command in commands)  # as Flower's tokens are

    federation, stream = assemble(aggregator=name)
    expected, weights = simulated(federation, stream, rounds)
    same = 0
    for k in range(4):
        lines = (tmp_path / "devices" / f"device-{k}" / "predictions.jsonl").read_text().splitlines()
        found = torch.tensor([json.loads(line)["class"] for line in lines]).view(rounds, -1)
        same += int((found == torch.stack([p[k] for p in expected])).sum())
    assert same >= 0.999 * 4 * rounds * expected[0].shape[1]
    for t in range(rounds):
        torch.testing.assert_close(read_collaboration(tmp_path / "server", t)[0], weights[t], atol=1e-4, rtol=0)
    rounded = sorted(s for s in seconds.values() if s)
    print(f"\n{name}: {same} predictions equal; median round {rounded[len(rounded) // 2]} s; MB {memory}; {status}")


@pytest.mark.slow
def test_devices_that_never_wait_share_their_books(tmp_path):
    seconds = time.monotonic()

    def watch(supervisor, status):
        assert time.monotonic() - seconds < 300

    status = up(Tryout(tmp_path, 2, 4, {"stream": "roam", "slots": 40}, pace=0.5), watch)
    assert (status["round"], status["refused"]) == (4, 0)
    for k in range(2):
        with safe_open(tmp_path / "devices" / f"device-{k}" / "device.safetensors", "pt") as file:
            book, part = (file.get_tensor(f"private.{name}")[:, 0].sum() for name in ("book", "part"))
        assert book > 0  # what the other has seen
        assert part > 0


def command_of(process):
    with suppress(OSError):
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def post(port, path, keys):
    trust = ssl.create_default_context(cafile=str(keys / "ca.crt"))
    connection = HTTPSConnection("127.0.0.1", port, timeout=20, context=trust)
    connection.request("POST", path, b"", {"Content-Type": "application/x-protobuf"})
    return connection.getresponse().status


def wait_for_line(supervisor, log, words, seconds=60.0):
    until = time.monotonic() + seconds
    while not (log.exists() and any(word in log.read_text() for word in words)):
        supervisor.tend()
        assert time.monotonic() < until, log.read_text() if log.exists() else "no log"
        time.sleep(0.2)


@pytest.mark.slow
def test_from_outside_only_nodes_with_a_known_key_get_in(tmp_path):
    keys, inner, outer = tmp_path / "keys", free_port(), free_port()
    make_keys(keys, [], 1)
    add_node(keys, "stranger")
    with Supervisor(tmp_path / "logs") as supervisor:
        link = Link("127.0.0.1", inner, keys)
        known = [keys / "nodes" / "device-0.pub"]
        start_server(supervisor, link, tmp_path / "flower", known, ("127.0.0.1", outer))
        wait_for_line(supervisor, tmp_path / "logs" / "gate.log", ["running on"])
        for path in ("/v1/control/list-runs", "/v1/runtime/acquire-task", "/v1/control/register-node", "/docs"):
            assert post(outer, path, keys) == 404
        assert post(inner, "/v1/control/list-runs", keys) != 404  # it is there, and cannot be reached from outside
        assert post(outer, "/v1/fleet/pull-messages", keys) in (400, 401, 403, 415)

        outside = Link("127.0.0.1", outer, keys)
        for name in ("device-0", "stranger"):
            key, door = keys / "nodes" / f"{name}.key", tmp_path / f"{name}.sock"
            supervisor.start(node(outside, name, door, key))
        wait_for_line(supervisor, tmp_path / "logs" / "node-device-0.log", ["SuperNode ID"])
        until = time.monotonic() + 60
        while not supervisor.tended["node-stranger"].deaths and time.monotonic() < until:
            supervisor.tend()
            time.sleep(0.2)
        assert supervisor.tended["node-stranger"].deaths
        assert "SuperNode ID" not in (tmp_path / "logs" / "node-stranger.log").read_text()
        assert supervisor.tended["node-device-0"].state == "running"
