"""A fleet of real processes in which parts die, lie and are cut off.

The short test runs with the others; the long ones take minutes: make fleet-test.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parent))

from ordeal import Ordeal

from fedctta.fleet.processes.serve import read_status

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


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 5])
def test_everything_that_can_die_dies(tmp_path, times):
    def story(fleet):
        yield from fleet.until_round(1)
        for k in range(times):
            for victim in (f"device-{k % 4}", f"node-device-{(k + 1) % 4}", "serverapp", "superlink"):
                yield from fleet.kill(victim)
        yield from fleet.all_counted()

    fleet = Ordeal(tmp_path)
    fleet.tell(story)
    fleet.check()
    assert len(fleet.recovered) == 4 * times
    assert fleet.refusals() == []
    print(f"{fleet.round} rounds; MB {fleet.memory}")


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

    fleet = Ordeal(tmp_path)
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

    fleet = Ordeal(tmp_path, devices=3, liar=True, quarantine=len(LIES) + 1, quarantine_rounds=2)
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
