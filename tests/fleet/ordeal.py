"""A fleet of real processes on loopback to which things happen, told as a story: a generator that acts and waits.

Nodes reach the SuperLink through the gate, as from outside. Everything is ended when the story is, or when it fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from fedctta.fleet.processes import process_specs
from fedctta.fleet.processes.process_specs import Link, free_port
from fedctta.fleet.processes.serve import lead, start_server
from fedctta.fleet.processes.supervisor import Supervisor
from fedctta.fleet.server.ledger import read_collaboration
from fedctta.fleet.server.plan import write_plan
from fedctta.fleet.transport.certificates import add_node, make_keys

HERE = Path(__file__).parent
PATIENCE = 240.0  # seconds until something that should happen must have happened


class Over(Exception):
    """The story has been told."""


class Ordeal:
    """Devices 0 to n - 1 with a camera each; `liar` is one more, which may lie."""

    def __init__(self, folder, devices=4, liar=False, begins=5.0, **fleet):
        self.folder, self.devices, self.liar, self.begins, self.weights = folder, devices, liar, begins, {}
        self.names = [f"device-{k}" for k in range(devices + liar)]
        self.keys, self.doors = folder / "keys", folder / "d"
        usual = {"state": "server", "rounds": 10**6, "devices": len(self.names), "max_devices": len(self.names)}
        usual |= {"deadline": 15.0, "pause": 3.0, "ttl": 60.0}  # time enough to be killed in the middle of a round
        (folder / "fleet.toml").write_text(
            write_plan(
                {**usual, **fleet},
                {"dataset": "shapes-c", "adapter": "bn", "aggregator": "fedctta", "bn.momentum": 0.3},
            )
        )
        self.rounds, self.kills, self.recovered, self.memory = [], [], [], {}
        self.supervisor, self.status = None, {}

    # -- telling

    def tell(self, story):
        """Start the fleet, let the story happen, end the fleet; return the last status, if the run came to its end."""
        make_keys(self.keys, [], len(self.names))
        add_node(self.keys, "stranger")
        self.doors.mkdir(mode=0o700)
        self.began = time.time() + self.begins
        outer = free_port()
        self.link = Link("127.0.0.1", free_port(), self.keys)
        self.outside = Link("127.0.0.1", outer, self.keys)
        self.story = story(self)
        with Supervisor(self.folder / "logs") as self.supervisor:
            for k, name in enumerate(self.names):
                self.supervisor.start(self._device(k, name))
            public = [self.keys / "nodes" / f"{name}.pub" for name in self.names]
            flower = start_server(self.supervisor, self.link, self.folder / "f", public, ("127.0.0.1", outer))
            self.start_nodes()
            try:
                return lead(self.supervisor, flower, self.folder / "fleet.toml", self._watch)
            except Over:
                return None

    def _watch(self, supervisor, status):
        self.status = status
        if status:
            self.rounds.append(status["round"])
        for name in supervisor.tended:
            self.memory[name] = max(self.memory.get(name, 0), supervisor.memory(name) >> 20)
        try:
            next(self.story)
        except StopIteration:
            raise Over from None

    def _device(self, k, name):
        state = self.folder / "devices" / name
        state.mkdir(parents=True)
        words = [
            "--model",
            "resnet8-w16",
            "--weights",
            str(self.weights.get(name, "shapes")),
            "--data",
            "python:camera:Camera",
        ]
        words += ["--state", str(state), "--socket", str(self.doors / f"{k}"), "--device", "cpu"]
        words += ["--adapter", "bn", "bn.momentum=0.3"]
        part = process_specs.device(name, words)
        if self.liar and k == self.devices:
            self.lie("honest")
            command = (sys.executable, str(HERE / "liar.py"), str(state), "device", "--name", name, *words)
            part = replace(part, command=command)
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        return replace(part, environment={**part.environment, "PYTHONPATH": path, "FLEET_BEGAN": str(self.began)})

    def start_nodes(self):
        """Start all SuperNodes."""
        for name in self.names:
            self.start_node(name)

    def stop_node(self, name):
        """End a device's SuperNode for good."""
        tended = self.supervisor.tended.pop(f"node-{name}")
        os.killpg(tended.process.pid, signal.SIGKILL)
        tended.process.wait()

    def start_node(self, name, door=None):
        """Start a device's SuperNode."""
        door = self.doors / (door or name.removeprefix("device-"))
        key = self.keys / "nodes" / f"{name}.key"
        part = process_specs.node(self.outside, name, door, key)
        if self.liar and name == self.names[-1]:  # a ClientApp without a limit: a liar's may be anything
            path = os.pathsep.join([str(HERE / "without_limit"), *filter(None, [os.environ.get("PYTHONPATH")])])
            part = replace(part, environment={**part.environment, "PYTHONPATH": path})
        self.supervisor.start(part)

    # -- what a story can do

    @property
    def round(self):
        """The round the server is in."""
        return self.status.get("round", 0)

    def counted(self):
        """The devices whose uploads the last closed round used."""
        weights, names = read_collaboration(self.folder / "server", self.round - 1)
        return {name for name, row in zip(names, weights, strict=True) if int((row > 0).sum()) > 1}

    def all_counted(self):
        """Wait for a round, from the next one on, in which every device takes part."""
        after = self.round + 1
        return self.until(lambda: self.round > after and self.counted() == set(self.names), "a round of all devices")

    def until(self, condition, what, patience=PATIENCE):
        """Wait."""
        end = time.monotonic() + patience
        while not condition():
            assert time.monotonic() < end, f"{what} did not come within {patience:.0f} s: {self.status}"
            yield

    def until_round(self, number):
        """Wait for a round to begin."""
        return self.until(lambda: self.round >= number, f"round {number}")

    def mid_round(self):
        """Wait until the server collects uploads, with a question on its way to somebody."""
        return self.until(lambda: self.status.get("doing") == "collecting", "the middle of a round")

    def pids(self, victim):
        """The processes of a part; the ServerApp is a child of the process starter."""
        if victim == "guard":
            return [self.supervisor._guard.pid]
        if victim != "serverapp":
            tended = self.supervisor.tended[victim]
            return [tended.process.pid] if tended.state == "running" else []
        group, found = self.supervisor.tended["superexec"].process.pid, []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == group and b"flwr-serverapp" in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
            except (OSError, IndexError):
                continue
        return found

    def kill(self, victim):
        """Kill -9 a part in the middle of a round, and wait for the round after the next to begin."""
        yield from self.mid_round()
        pids, before, now = self.pids(victim), self.round, time.time()
        assert pids, f"{victim} is not there"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.kills.append((victim, now))
        yield from self.until_round(before + 2)
        if victim in self.names:
            file, size = self.predictions(victim), self.predictions(victim).stat().st_size
            yield from self.until(lambda: file.stat().st_size > size, f"a prediction of {victim}")
        self.recovered.append((victim, time.time() - now))
        print(f"killed {victim} in round {before}: two rounds later after {time.time() - now:.0f} s", flush=True)

    def strike(self, victim):
        """Kill -9 a part, if it is there; return whether it was."""
        pids = self.pids(victim)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if pids:
            self.kills.append((victim, time.time()))
        return bool(pids)

    def rest(self, seconds):
        """Let time pass."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            yield

    def stop_for(self, part, seconds):
        """Hold a part still for a while."""
        pid, until = self.supervisor.tended[part].process.pid, time.monotonic() + seconds
        os.kill(pid, signal.SIGSTOP)
        try:
            while time.monotonic() < until:
                yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def lie(self, name):
        """Let the liar tell this from now on."""
        (self.folder / "devices" / self.names[-1] / "lie").write_text(name)

    # -- what is left afterwards

    def predictions(self, name):
        """The file of a device's predictions."""
        return self.folder / "devices" / name / "predictions.jsonl"

    def refusals(self):
        """The log of refusals."""
        path = self.folder / "server" / "refusals.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def check(self, longest=10.0):
        """Nothing lost, nothing twice, nothing torn, no prediction waited for; return the longest gaps."""
        assert self.rounds == sorted(self.rounds), "the server went back"
        kept = sorted(int(path.stem) for path in (self.folder / "server" / "collaboration").glob("*.safetensors"))
        assert kept == list(range(len(kept))), "a round is lost"
        assert len(kept) >= self.rounds[-1]
        gaps = {}
        for name in self.names:
            text = self.predictions(name).read_text()
            assert text.endswith("\n")
            rows = [json.loads(line) for line in text.splitlines()]
            assert [int(row["id"]) for row in rows] == list(range(len(rows))), f"{name} lost or repeated an image"
            times = [row["time"] for row in rows]
            own = [moment for victim, moment in self.kills if victim == name]
            between = [
                later - sooner
                for sooner, later in pairwise(times)
                if not any(sooner <= moment <= later for moment in own)
            ]
            gaps[name] = max(between)
        print({name: f"{gap:.2f} s" for name, gap in gaps.items()}, "are the longest gaps between predictions")
        assert max(gaps.values()) < longest
        return gaps
