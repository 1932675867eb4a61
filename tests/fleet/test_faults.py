"""A fleet of real processes in which parts die, lie and are cut off.

The short test runs with the others; the long ones take minutes: make fleet-test.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parent))

from ordeal import Ordeal

from fedctta.fleet.processes.leftovers import end_leftovers, find
from fedctta.fleet.processes.process_specs import free_port
from fedctta.fleet.processes.serve import read_status
from fedctta.fleet.server.plan import write_plan
from fedctta.fleet.transport.certificates import make_keys

pytestmark = pytest.mark.usefixtures("alone")
CUT = 30.0


def test_a_device_dies(tmp_path):
    """Under a minute: a device is killed in the middle of a round and comes back, and the run comes to its end."""

    def story(fleet):
        yield from fleet.until_round(1)
        yield from fleet.kill("device-0")
        while True:
            yield

    fleet = Ordeal(tmp_path, devices=2, rounds=4)
    status = fleet.tell(story)
    assert (status["doing"], status["round"], status["refused"]) == ("finished", 4, 0)
    assert [victim for victim, _ in fleet.recovered] == ["device-0"]
    fleet.check()


KILLS, BURST = 100, 48


@pytest.mark.slow
def test_a_hundred_kills_lose_nothing(tmp_path):
    """Nothing is lost, and every image is predicted exactly once, whatever dies and whenever.

    First one part after another, each in a fleet that is well, to see how long it takes to recover. Then random parts
    in bursts, also while others are dead; after each burst the fleet must come to a round of all devices.
    """
    random = Random(0)
    names = [f"device-{k}" for k in range(3)]
    parts = [*names, *(f"node-{name}" for name in names), "serverapp", "superlink", "guard", "gate"]

    def story(fleet):
        yield from fleet.until_round(1)
        for victim in ("device-0", "node-device-1", "serverapp", "superlink"):
            yield from fleet.kill(victim)
        while len(fleet.kills) < KILLS:
            for _ in range(BURST):
                next(victim for victim in random.sample(parts, len(parts)) if fleet.strike(victim))
                yield from fleet.rest(random.uniform(0.1, 1.5))
            now, before = time.time(), fleet.round
            yield from fleet.all_counted()
            print(f"{len(fleet.kills)} kills, round {before}: all devices after {time.time() - now:.0f} s", flush=True)
        print(dict(Counter(victim for victim, _ in fleet.kills)), flush=True)

    fleet = Ordeal(tmp_path, devices=3)
    fleet.tell(story)
    fleet.check(longest=20.0)
    assert len(fleet.kills) == KILLS
    assert {victim for victim, _ in fleet.kills} == set(parts)
    assert fleet.refusals() == []
    print(f"{fleet.round} rounds; MB {fleet.memory}")


@pytest.mark.slow
def test_empty_cameras_stop_nothing(tmp_path):
    """Rounds in which nobody has anything are closed empty; when images come, the fleet goes on by itself."""

    def story(fleet):
        yield from fleet.until(lambda: fleet.status.get("empty_rounds", 0) >= 2, "two empty rounds")
        yield from fleet.until(lambda: time.time() > fleet.began, "the first image")
        yield from fleet.all_counted()

    fleet = Ordeal(tmp_path, devices=2, begins=75.0, deadline=5.0)
    fleet.tell(story)
    fleet.check()
    assert "nobody had an upload; closed empty" in (tmp_path / "server" / "server.log").read_text()
    print(f"{fleet.status['empty_rounds']} of {fleet.round} rounds were empty")


@pytest.mark.slow
def test_a_network_cut_for_half_a_minute(tmp_path):
    def story(fleet):
        yield from fleet.until_round(1)
        yield from fleet.mid_round()
        began, before = time.time(), fleet.round
        yield from fleet.stop_for("gate", CUT)
        yield from fleet.until_round(max(before, fleet.round) + 2)
        yield from fleet.all_counted()
        print(f"cut for {CUT:.0f} s in round {before}: a round of all devices after {time.time() - began:.0f} s")

    fleet = Ordeal(tmp_path, devices=2)
    fleet.tell(story)
    fleet.check()
    assert fleet.refusals() == []


def processes_of(folder):
    """The living processes that know a folder by their command or environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in (process / "cmdline").read_bytes() + (process / "environ").read_bytes():
                found.append(int(process.name))
    return sorted(set(found) - {os.getpid()})


@pytest.mark.slow
def test_who_kills_the_command_leaves_nothing_and_may_repeat_it(tmp_path):
    words = ["fleet", "up", "--devices", "2", "--rounds", "4", "--lockstep", "--out", str(tmp_path), "slots=1"]
    command = [sys.executable, "-c", "from fedctta.cli import main; main()", *words]
    state = tmp_path / "server"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as first:
        try:
            wait_for(lambda: read_status(state).get("round", 0) >= 1, 200)
            count, before = len(processes_of(tmp_path)), read_status(state)
        finally:
            first.kill()
    assert count >= 8  # the command, two devices, two nodes, SuperLink, process starter, ServerApp
    began = time.monotonic()
    wait_for(lambda: not processes_of(tmp_path), 30)
    print(f"{count} processes were gone {time.monotonic() - began:.1f} s after kill -9 of the command")
    subprocess.run(command, check=True, timeout=300)
    after = read_status(state)
    assert (after["doing"], after["round"], after["run"]) == ("finished", 4, before["run"])
    assert len(list((state / "collaboration").glob("*.safetensors"))) == 4
    for k in range(2):
        rows = [json.loads(line) for line in (tmp_path / f"devices/device-{k}/predictions.jsonl").open()]
        assert len({row["id"] for row in rows}) == len(rows) >= 40


def wait_for(condition, seconds):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.2)


@pytest.fixture
def disk():
    """A small disk of its own; not among pytest's folders, which another session may move away."""
    place = Path(tempfile.mkdtemp(prefix="fedctta-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", str(place)]
    try:
        if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("needs the right to mount")
        yield place
        subprocess.run(["umount", "-l", str(place)], check=True)
    finally:
        place.rmdir()


def fill(path):
    """Write until nothing fits."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            pass


@pytest.mark.slow
def test_a_full_disk_is_survived_by_all_parts(disk):
    """Everything lies on it: devices, server, Flower's database and the logs. They go on when there is room."""

    def story(fleet):
        yield from fleet.until_round(2)
        fill(disk / "filler")
        yield from fleet.rest(20.0)
        codes = {name: fleet.supervisor.tended[name].deaths for name in fleet.names}
        before = fleet.round
        (disk / "filler").unlink()
        yield from fleet.until_round(before + 2)
        yield from fleet.all_counted()
        print(f"the disk was full for 20 s; deaths of devices meanwhile: {codes}; round {before}, now {fleet.round}")
        assert all(codes.values())

    fleet = Ordeal(disk, devices=2)
    fleet.tell(story)
    fleet.check(longest=60.0)  # a prediction that cannot be written down is not made
    for name in fleet.names:
        said = (disk / "logs" / f"{name}.log").read_text()
        assert "fedctta.files" not in said, "a trace, not a line"


HEAD = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n"
FORGED = b"flwr-public-key: eA==\r\nflwr-signature: eA==\r\nflwr-timestamp: 2026-01-01\r\n"


class Strangers:
    """Threads that keep so many connections to a port open, without a key, and send what `speak` does."""

    def __init__(self, port, keys, count, speak):
        self.trust = ssl.create_default_context(cafile=str(keys / "ca.crt"))
        self.port, self.speak, self.ending, self.opened = port, speak, threading.Event(), 0
        self.threads = [threading.Thread(target=self._stay, daemon=True) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def _stay(self):
        while not self.ending.is_set():
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), timeout=5) as plain,
                self.trust.wrap_socket(plain, server_hostname="localhost") as connection,
            ):
                self.opened += 1
                self.speak(connection, self.ending)
            self.ending.wait(0.5)

    def end(self):
        self.ending.set()
        for thread in self.threads:
            thread.join(10)


def drip(connection, ending):
    """A body that comes slowly."""
    connection.sendall(HEAD % (1 << 20, b""))
    while not ending.wait(1.0):
        connection.sendall(b"x")


def drip_head(connection, ending):
    """A head that does not end."""
    connection.sendall((HEAD % (9, b""))[:-2])
    while not ending.wait(1.0):
        connection.sendall(b"X: y\r\n")


def pour(connection, ending):
    """A large body, with headers that look like a node's."""
    connection.sendall(HEAD % (59 << 20, FORGED))
    piece = b"x" * (1 << 20)
    for _ in range(59):
        if ending.is_set():
            return
        connection.sendall(piece)
    connection.recv(100)


@pytest.mark.slow
def test_strangers_do_not_stop_the_fleet(tmp_path):
    """110 slow bodies, 110 slow heads, and 8 bodies of 59 MB: rounds go on, and nobody else pays for them."""

    def story(fleet):
        yield from fleet.until_round(2)
        yield from fleet.all_counted()
        for count, speak in ((110, drip), (110, drip_head), (8, pour)):
            before, fleet.memory = fleet.round, {}
            strangers = Strangers(fleet.outside.port, fleet.keys, count, speak)
            try:
                yield from fleet.rest(25.0)
                during, opened = fleet.round - before, strangers.opened
                yield from fleet.all_counted()
            finally:
                strangers.end()
            print(
                f"{count} strangers ({speak.__name__}), {opened} connections in 25 s: {during} rounds; {fleet.memory}"
            )
            assert opened >= count
            assert during >= 1
            assert fleet.memory["superlink"] < 300
            assert fleet.memory["gate"] < 150

    fleet = Ordeal(tmp_path, devices=2)
    fleet.tell(story)
    fleet.check()
    assert [part for part, tended in fleet.supervisor.tended.items() if tended.deaths] == []


@pytest.mark.slow
def test_who_kills_the_guard_and_the_command_may_repeat_it(tmp_path):
    """The new server does not speak to the old SuperLink, and says what it cannot go on with."""
    make_keys(tmp_path / "keys", [], 1)
    plan, state = tmp_path / "fleet.toml", tmp_path / "state"
    plan.write_text(write_plan({"state": "state", "rounds": 9, "max_devices": 2}, {"dataset": "shapes-c"}))
    words = ["fleet", "server", str(plan), "--keys", str(tmp_path / "keys"), "--listen", f"127.0.0.1:{free_port()}"]
    words += ["--port", str(free_port()), "--out", str(tmp_path / "out")]
    command = [sys.executable, "-c", "from fedctta.cli import main; main()", *words]

    mark = str((tmp_path / "out" / "logs").resolve() / "fleet")

    def spoken():
        return read_status(state).get("doing") == "waiting for devices"

    try:
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as first:
            try:
                wait_for(spoken, 120)
                (guard,) = (pid for pid in children(first.pid) if "guard.py" in command_of(pid))
                os.kill(guard, signal.SIGKILL)
            finally:
                first.kill()
        old = find(mark)
        assert len(old) >= 4, "SuperLink, process starter, ServerApp and gate"
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as second:
            try:
                wait_for(lambda: not old & find(mark), 60)
                (state / "status.json").unlink()
                wait_for(spoken, 120)
                new = find(mark)
                assert len(new) >= 4
                (state / "checkpoint.safetensors").write_bytes(b"no tensors")
                (app,) = (pid for pid in new if "flwr-serverapp" in command_of(pid))
                os.kill(app, signal.SIGKILL)
                _, said = second.communicate(timeout=120)
            finally:
                second.terminate()
        assert second.returncode == 2
        assert "checkpoint.safetensors is damaged" in said
        wait_for(lambda: not find(mark), 20)
        third = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert (third.returncode, "is damaged" in third.stderr) == (2, True)
    finally:
        end_leftovers(mark, 0.0)


def children(parent):
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            if int((process / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(process.name))
    return found


def command_of(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


LIES = {"nan": "not finite", "shapes": ", not float32", "200 MB": "more than the", "old round": ", asked was round"}


@pytest.mark.slow
def test_lies_are_refused_and_strangers_stay_out(tmp_path):
    def refused(fleet, reason):
        return any(reason in line["reason"] for line in fleet.refusals())

    def story(fleet):
        fleet.start_node("stranger")
        yield from fleet.until_round(2)
        for lie, reason in LIES.items():
            fleet.lie(lie)
            yield from fleet.until(lambda reason=reason: refused(fleet, reason), f"the refusal of {lie}")
        yield from fleet.until(lambda: any("quarantined" in line for line in fleet.refusals()), "quarantine")
        fleet.lie("honest")
        yield from fleet.until(lambda: fleet.supervisor.tended["node-stranger"].deaths, "the end of the stranger")
        yield from fleet.all_counted()

    fleet = Ordeal(tmp_path, devices=2, liar=True, quarantine=len(LIES) + 1, quarantine_rounds=2)
    fleet.tell(story)
    fleet.check()
    liar = fleet.names[-1]
    for line in fleet.refusals():
        print(line)
        assert line["device"] == liar
        assert line["node"].isdecimal()
        assert any(reason in line["reason"] for reason in LIES.values())
    told = [json.loads(line) for line in (tmp_path / "devices" / liar / "told.jsonl").read_text().splitlines()]
    lies = {step["round"] for step in told if step["lie"] != "honest" and step["kind"] == "upload"}
    downloads = {step["download"] for step in told} - {None}
    assert lies
    assert downloads
    assert not lies & downloads, "a refused device was given a model"
    assert "SuperNode ID" not in (tmp_path / "logs" / "node-stranger.log").read_text()
    assert "No SuperNode found with the given public key" in (tmp_path / "logs" / "superlink.log").read_text()
    print(f"{fleet.round} rounds; MB {fleet.memory}")
