"""Attacks on a fleet of real processes: foreign apps, borrowed names, keys that are no longer trusted.

Everything listens on loopback, and everything that is started is ended by the supervisor of its test.
"""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parent))

from ordeal import Ordeal

from fedctta.data.shapes import KINDS
from fedctta.fleet.processes import process_specs
from fedctta.fleet.processes.leftovers import find
from fedctta.fleet.processes.process_specs import Link, ProcessSpec, environment, free_port
from fedctta.fleet.processes.serve import _restart, start_server
from fedctta.fleet.processes.supervisor import Supervisor
from fedctta.fleet.transport.certificates import add_node, make_keys, renew, revoke_node
from fedctta.models import build

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("alone")]
PROGRAMS = Path(sys.executable).parent

EVIL = """\
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.query()
def query(message, context):
    Path({marker!r}).write_text("a stranger's code ran on a node")
    return Message(RecordDict(), reply_to=message)

@server.main()
def main(grid, context):
    import time
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.2)
    list(grid.send_and_receive([Message(RecordDict(), dst_node_id=n, message_type="query") for n in nodes], timeout=60))
"""
PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "evil"
version = "1.0.0"
description = "x"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "stranger"
[tool.flwr.app.components]
serverapp = "evil:server"
clientapp = "evil:client"
"""


def flwr(folder, link, *words):
    """Do what anybody with ca.crt can try on the server's machine; return what `flwr` says."""
    home = folder / "stranger"
    home.mkdir(exist_ok=True)
    trust = f'root-certificates = "{link.keys / "ca.crt"}"'
    (home / "config.toml").write_text(f'[superlink.fleet]\naddress = "{link.address}"\n{trust}\n')
    done = subprocess.run(
        (str(PROGRAMS / "flwr"), *words, "--format", "json"),
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment(home)},
        cwd=home,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return done.stdout + done.stderr


def run_foreign_app(folder, link, marker):
    """Submit an app that writes a file on every node."""
    app = folder / "evil"
    app.mkdir()
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "evil.py").write_text(EVIL.format(marker=str(marker)))
    return flwr(folder, link, "run", str(app), "fleet")


def wait(supervisor, condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < until:
        supervisor.tend()
        time.sleep(0.2)
    return found


def listening(group):
    """Return the TCP ports at which a process and its children listen."""
    tables = "".join(
        Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6") if Path(f"/proc/net/{name}").exists()
    )
    rows = (line.split() for line in tables.splitlines())
    ports = {row[9]: int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}
    members = [pid for pid in Path("/proc").glob("[0-9]*") if group_of(pid) == group]
    assert members
    inodes = {str(fd.readlink())[8:-1] for pid in members for fd in (pid / "fd").iterdir() if fd.is_symlink()}
    return {ports[inode] for inode in inodes & ports.keys()}


def group_of(process):
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[2])
    except OSError:
        return None


def test_a_foreign_app_is_not_started(tmp_path):
    make_keys(tmp_path / "keys", [], 1)
    link, marker = Link("127.0.0.1", free_port(), tmp_path / "keys"), tmp_path / "marker"
    with Supervisor(tmp_path / "logs") as supervisor:
        start_server(supervisor, link, tmp_path / "flower", [tmp_path / "keys" / "nodes" / "device-0.pub"])
        answer = run_foreign_app(tmp_path, link, marker)
        assert '"success": true' not in answer
        assert "login" in answer.lower() or "auth" in answer.lower()


def test_a_node_runs_no_foreign_app_even_if_the_superlink_does(tmp_path):
    make_keys(tmp_path / "keys", [], 1)
    link, marker = Link("127.0.0.1", free_port(), tmp_path / "keys"), tmp_path / "marker"
    log = tmp_path / "logs" / "node-device-0.log"
    with Supervisor(tmp_path / "logs") as supervisor:
        part = process_specs.superlink(link, tmp_path / "superlink.db", tmp_path / "home")
        plain = [word for word in part.command if not word.startswith("--superexec") and "secret" not in word]
        plain = plain[plain.index("--ssl-ca-certfile") :]  # Flower's own, whose control API is open
        plain[plain.index("--isolation") + 1] = "subprocess"
        supervisor.start(ProcessSpec("superlink", (str(PROGRAMS / "flower-superlink"), *plain), part.environment))
        key = tmp_path / "keys" / "nodes" / "device-0.key"
        public = str(key.with_suffix(".pub"))
        assert wait(
            supervisor, lambda: '"success": true' in flwr(tmp_path, link, "supernode", "register", public, "fleet")
        )
        supervisor.start(process_specs.node(link, "device-0", tmp_path / "d.sock", key))
        assert wait(supervisor, lambda: log.exists() and "SuperNode ID" in log.read_text())
        assert '"success": true' in run_foreign_app(tmp_path, link, marker)
        assert wait(supervisor, lambda: marker.exists() or "FAB" in log.read_text())
        assert not marker.exists()
        assert "could not be verified" in log.read_text()
        assert listening(supervisor.tended["superlink"].process.pid)
        assert not listening(supervisor.tended["node-device-0"].process.pid)  # no port for other users of the machine
    assert not find(str((tmp_path / "logs").resolve() / "fleet"))  # nor is the stranger's ServerApp left behind


def test_a_key_speaks_for_its_own_name_only(tmp_path):
    """device-1's key says device-0: turned away. It says device-1: let in, and put out when its key is revoked."""
    ordeal = Ordeal(tmp_path, devices=2)

    def story(o):
        yield from o.until(lambda: o.refusals(), "a refusal", 120)
        told = o.refusals()[0]
        assert told["device"] == "device-1"
        assert "'device-1' says that it is 'device-0'" in told["reason"]
        o.stop_node("device-1")
        o.start_node("device-1")
        yield from o.all_counted()
        revoke_node(o.keys, "device-1")
        online = lambda: {node["device"] for node in o.status["nodes"] if node["online"]}  # noqa: E731
        yield from o.until(lambda: online() == {"device-0"}, "the end of device-1", 60)
        yield from o.until_round(o.round + 2)

    ordeal.start_nodes = lambda: (ordeal.start_node("device-0"), ordeal.start_node("device-1", door="0"))
    ordeal.tell(story)
    assert ordeal.counted() <= {"device-0"}
    print(ordeal.refusals()[0]["reason"])


def test_a_revoked_key_is_out_at_once_and_after_a_restart(tmp_path):
    keys, log = tmp_path / "keys", tmp_path / "logs" / "node-device-0.log"
    make_keys(keys, [], 1)
    state = tmp_path / "state"

    def start(supervisor, key):
        link = Link("127.0.0.1", free_port(), keys)
        flower = start_server(supervisor, link, tmp_path / "flower", keys / "nodes")
        supervisor.start(process_specs.node(link, "device-0", tmp_path / "d.sock", key))
        return flower.keyring

    def deaths(supervisor, keyring):
        keyring.tend(state)
        return supervisor.tended["node-device-0"].deaths

    stolen = tmp_path / "stolen.key"
    stolen.write_bytes((keys / "nodes" / "device-0.key").read_bytes())
    with Supervisor(tmp_path / "logs") as supervisor:
        keyring = start(supervisor, stolen)
        assert wait(supervisor, lambda: log.exists() and "SuperNode ID" in log.read_text())
        assert not deaths(supervisor, keyring)
        revoke_node(keys, "device-0")
        assert wait(supervisor, lambda: deaths(supervisor, keyring), 90)
        assert keyring.names == {}
    before = log.read_text().count("SuperNode ID")
    with Supervisor(tmp_path / "logs") as supervisor:
        keyring = start(supervisor, stolen)
        assert wait(supervisor, lambda: deaths(supervisor, keyring), 90)
        assert log.read_text().count("SuperNode ID") == before
        add_node(keys, "device-0")  # a new key under the old name, without a restart
        assert wait(supervisor, lambda: keyring.tend(state) or keyring.names)


def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path):
    keys, inner, outer = tmp_path / "keys", free_port(), free_port()
    make_keys(keys, [], 1, days=9)
    trust = ssl.create_default_context(cafile=str(keys / "ca.crt"))  # as nodes know it

    def ends(port):
        try:
            with (
                socket.create_connection(("127.0.0.1", port), 2) as plain,
                trust.wrap_socket(plain, server_hostname="localhost") as safe,
            ):
                return safe.getpeercert()["notAfter"]
        except OSError:
            return None

    with Supervisor(tmp_path / "logs") as supervisor:
        link = Link("127.0.0.1", inner, keys)
        flower = start_server(supervisor, link, tmp_path / "flower", keys / "nodes", ("127.0.0.1", outer))
        old = wait(supervisor, lambda: ends(outer))
        assert old == ends(inner)
        renew(keys)
        assert flower.keyring.renewed()
        _restart(supervisor, "superlink", "gate")
        assert wait(supervisor, lambda: {ends(inner), ends(outer)}.isdisjoint({old, None}))
        assert flower.nodes()


def test_a_device_with_other_weights_is_refused_and_says_why(tmp_path):
    ordeal = Ordeal(tmp_path, devices=2)
    ordeal.weights["device-1"] = tmp_path / "random.safetensors"
    torch.manual_seed(0)
    save_file(build("resnet8-w16", len(KINDS)).state_dict(), ordeal.weights["device-1"])

    def story(o):
        yield from o.until(lambda: o.refusals(), "a refusal", 120)

    ordeal.tell(story)
    assert "device's model has other weights" in ordeal.refusals()[0]["reason"]
    assert "device's model has other weights" in (tmp_path / "logs" / "device-1.log").read_text()


def test_a_device_that_comes_back_with_other_weights_is_refused_though_its_node_never_left(tmp_path):
    ordeal = Ordeal(tmp_path, devices=2)
    noisy = build("resnet8-w16", len(KINDS)).state_dict()

    def story(o):
        yield from o.all_counted()
        tended = o.supervisor.tended.pop("device-1")
        os.killpg(tended.process.pid, signal.SIGKILL)
        tended.process.wait()
        save_file(noisy, tmp_path / "noisy.safetensors")
        other = {"shapes": str(tmp_path / "noisy.safetensors")}
        other[str(tmp_path / "devices" / "device-1")] = str(tmp_path / "other-state")
        o.supervisor.start(replace(tended.part, command=tuple(other.get(word, word) for word in tended.part.command)))
        yield from o.until(lambda: o.refusals(), "a refusal", 120)
        refused = o.refusals()[0]["round"]
        yield from o.until(lambda: o.round > refused + 1 and not o.counted(), "a round of one device alone", 60)

    ordeal.tell(story)
    assert {line["device"] for line in ordeal.refusals()} == {"device-1"}
    assert all("the device's model has other weights" in line["reason"] for line in ordeal.refusals())
    assert "refused the server's request" in (tmp_path / "logs" / "device-1.log").read_text()


ANNOUNCES = """
import sys
from fedctta.fleet import flower
from fedctta.fleet.transport import node

send, answers = flower.push_objects, []

def announce(*words, **named):
    answers.append(words)
    if len(answers) == 1:  # the answer to the hello
        send(*words, **named)

flower.push_objects = announce
node.main(sys.argv[1:])
"""


def test_a_node_that_announces_answers_and_sends_none_holds_up_no_round(tmp_path):
    ordeal, start = Ordeal(tmp_path, devices=2), process_specs.node
    code = tmp_path / "announces.py"
    code.write_text(ANNOUNCES)

    def story(o):
        yield from o.until(lambda: o.round > 4, "a fifth round", 150)

    def node(link, name, *rest):
        part = start(link, name, *rest)
        return replace(part, command=(sys.executable, str(code), *part.command[3:])) if name == "device-1" else part

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_specs, "node", node)
        ordeal.tell(story)
    assert "device-1 joined" in (tmp_path / "server" / "server.log").read_text()


def test_a_plans_least_batch_is_heeded_by_devices(tmp_path):
    ordeal = Ordeal(tmp_path, devices=1)
    plan, log = tmp_path / "fleet.toml", tmp_path / "server" / "server.log"
    plan.write_text(plan.read_text().replace("[run]", "[run]\nmin_batch = 50"))

    def story(o):
        yield from o.until(lambda: log.exists() and "is too small to share, at least 50" in log.read_text(), "a no", 90)

    ordeal.tell(story)
    assert not list((tmp_path / "server").glob("collaboration/*"))
