"""The commands say what they do, and refuse what is not safe."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

from fedctta.cli import app
from fedctta.errors import UserError
from fedctta.fleet.processes.process_specs import free_port
from fedctta.fleet.server.audit import last_hash, record
from fedctta.fleet.server.bindings import write_bindings
from fedctta.fleet.server.ledger import Ledger, take
from fedctta.fleet.transport.certificates import make_keys


def call(*words):
    done = CliRunner().invoke(app, ["fleet", *words])
    if isinstance(done.exception, UserError):
        raise done.exception
    return done


def test_all_commands_are_there():
    text = call("--help").output
    for name in ("up", "keys", "server", "node", "device", "status", "watch", "audit", "proxy"):
        assert f" {name} " in text
    assert "device" in CliRunner().invoke(app, ["--help"]).output


def test_keys_and_proxy(tmp_path):
    pytest.importorskip("cryptography")
    done = call("keys", "--out", str(tmp_path / "k"), "--hosts", "a.example,10.0.0.1", "--nodes", "2")
    assert done.exit_code == 0
    assert (tmp_path / "k" / "nodes" / "device-1.pub").exists()
    assert "listen 0.0.0.0:9092 ssl" in call("proxy", "--keys", str(tmp_path / "k")).output


def test_keys_are_revoked_added_and_renewed(tmp_path):
    pytest.importorskip("flwr")
    keys = tmp_path / ":key:"
    assert ":key:" in call("keys", "--out", str(keys)).output  # and no picture of one
    assert "its node is put out" in call("keys", "--out", str(keys), "--revoke", "device-0").output
    assert not (keys / "nodes" / "device-0.pub").exists()
    assert "device-0.pub" in call("keys", "--out", str(keys), "--add", "device-0").output
    before = (keys / "server.crt").read_bytes()
    assert "within seconds" in call("keys", "--out", str(keys), "--renew").output
    assert (keys / "server.crt").read_bytes() != before
    for words, reason in (
        (["--renew", "--add", "x"], "one at a time"),
        (["--renew", "--nodes", "2"], "have no effect"),
        (["--revoke", "x"], "its nodes are device-0"),
    ):
        with pytest.raises(UserError, match=reason):
            call("keys", "--out", str(keys), *words)


def test_a_node_must_know_whose_app_it_runs(tmp_path):
    pytest.importorskip("flwr")
    make_keys(tmp_path / "k", [], 1, days=9)
    (tmp_path / "k" / "trusted.yaml").unlink()
    words = ["node", "--socket", "d.sock", "--ca", str(tmp_path / "k" / "ca.crt"), "--key", "x.key"]
    with pytest.raises(UserError, match=r"trusted\.yaml is missing"):
        call(*words)
    make_keys(tmp_path / "new", [], 1)
    with pytest.raises(UserError, match=r"cannot read x\.key"):
        call(*words[:4], str(tmp_path / "new" / "ca.crt"), *words[5:])
    make_keys(tmp_path / "old", [], 1, days=0)
    with pytest.raises(UserError, match="ended on"):
        call(*words[:4], str(tmp_path / "old" / "ca.crt"), *words[5:])


def test_a_server_needs_all_its_keys_and_those_that_fit(tmp_path):
    pytest.importorskip("flwr")
    plan, keys, other = tmp_path / "fleet.toml", tmp_path / "k", tmp_path / "other"
    plan.write_text('[run]\ndataset = "shapes-c"\n')
    make_keys(other, [], 1)
    for name, reason in (
        ("server.key", "server.crt does not fit server.key"),
        ("ca.crt", "server.crt does not fit ca.crt"),
        ("superexec.secret", None),
        ("app.fab", None),
        ("app.json", None),
    ):
        shutil.rmtree(keys, ignore_errors=True)
        make_keys(keys, [], 1)
        words = ["server", str(plan), "--keys", str(keys), "--out", str(tmp_path / "out")]
        if reason is not None:
            shutil.copy(other / name, keys / name)
            with pytest.raises(UserError, match=reason):
                call(*words)
        (keys / name).unlink()
        with pytest.raises(UserError, match=f"lacks {name}: copy"):
            call(*words)
    assert not (tmp_path / "out").exists()


def test_status(tmp_path):
    with pytest.raises(UserError, match=r"no status\.json"):
        call("status", str(tmp_path))
    node = {"device": "cam", "node": "1", "online": True, "refused": 2, "ignored": False}
    told = {"doing": "running", "round": 3, "rounds": 9, "nodes": [node], "refused": 2, "written": time.time()}
    (tmp_path / "status.json").write_text(json.dumps(told))
    line = {"round": 2, "device": "cam", "node": "1", "reason": "[bold]"}
    (tmp_path / "refusals.jsonl").write_text(json.dumps(line) + "\n")
    text = call("status", str(tmp_path)).output
    assert "round 3 of 9: not running" in text
    assert "cam" in text
    assert "refused in round 2: cam: [bold]" in text
    assert "certificate" not in text


def test_status_for_programs_and_names_that_are_markup(tmp_path):
    node = {"device": "[/x]", "node": "1", "online": True, "refused": 2, "ignored": False}
    (tmp_path / "status.json").write_text(json.dumps({"round": 3, "nodes": [node], "written": time.time()}))
    (tmp_path / "refusals.jsonl").write_text('{"round": 2, "dev')
    assert "[/x]" in call("status", str(tmp_path)).output
    seen = json.loads(call("status", str(tmp_path), "--json").output)
    assert seen["nodes"][0]["device"] == "[/x]"
    assert seen["audit"] == {"lines": 0, "breaks": [], "latest": []}


@pytest.mark.parametrize(("days", "said"), [(40, ""), (12, "ends in 11 days"), (-2, "ended on")])
def test_status_says_when_the_certificate_ends(tmp_path, days, said):
    (tmp_path / "status.json").write_text("{}")
    write_bindings(tmp_path, {}, (tmp_path / "server.crt", datetime.now(UTC) + timedelta(days=days)))
    text = call("status", str(tmp_path)).output
    found = [line for line in text.splitlines() if line.startswith("certificate: ")]
    assert len(found) == bool(said)
    assert all(said in line and "fedctta fleet keys --out FOLDER --renew" in line for line in found)
    seen = json.loads(call("status", str(tmp_path), "--json").output)
    assert seen["certificate"]["days"] == days - 1


def test_audit(tmp_path):
    (tmp_path / "status.json").write_text("{}")
    for k in range(3):
        record(tmp_path, "admitted", device=f"[/x]{k}")
    text = call("audit", str(tmp_path)).output
    assert "3 lines, as they were written" in text
    assert last_hash(tmp_path) in text
    assert call("audit", str(tmp_path), "--noted", last_hash(tmp_path)).exit_code == 0
    with pytest.raises(UserError, match="not as it was written"):
        call("audit", str(tmp_path), "--noted", "ab" * 32)
    log = tmp_path / "audit.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[::2]))
    assert "audit log: line 2 says it is line 3" in call("status", str(tmp_path)).output
    done = subprocess.run(
        [sys.executable, "-m", "fedctta", "fleet", "audit", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "line 2 says it is line 3, not 2: lines before it were deleted" in done.stderr


def test_watch_serves_until_it_is_stopped(tmp_path):
    (tmp_path / "status.json").write_text('{"round": 3}')
    command = [sys.executable, "-m", "fedctta", "fleet", "watch", str(tmp_path), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = process.stderr.readline().split()[0]
            with urlopen(f"{address}metrics") as answer:
                assert "fedctta_rounds_closed_total 3" in answer.read().decode()
            process.terminate()
            assert process.wait(60) == 143
        finally:
            process.kill()


def test_status_survives_torn_lines_and_names_that_look_like_markup(tmp_path):
    node = {"device": "[/x]", "node": "1", "online": True, "refused": 2, "ignored": False}
    told = {"doing": "running", "round": 3, "rounds": 9, "nodes": [node], "refused": 2, "written": time.time()}
    (tmp_path / "status.json").write_text(json.dumps(told))
    line = {"round": 2, "device": "[/x]", "node": "1", "reason": "[/bold]"}
    (tmp_path / "refusals.jsonl").write_text(f'{json.dumps(line)}\n7\n{{"round": 1}}\n{{"time": 12.5, "rou')
    text = call("status", str(tmp_path)).output
    assert "[/x]" in text
    assert "refused in round 2: [/x]: [/bold]" in text


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["watch", "OUT"], "no folder .*out"),
        (["status", "OUT"], "no folder .*out"),
        (["watch", "OUT", "--listen", "0.0.0.0:9095"], "--insist"),
        (["audit", "OUT"], "no folder .*out"),
        (["keys", "--out", "OUT", "--revoke", "x"], "out is not there"),
        (["node", "--socket", "d.sock"], "needs --ca and --key"),
        (["node", "--socket", "d.sock", "--server", "10.0.0.1:1", "--insecure"], "--insist"),
        (["node", "--socket", "d.sock", "--server", "nonsense"], "HOST:PORT"),
        (["server", "PLAN", "--listen", "0.0.0.0:1", "--insecure"], "--insist"),
        (["server", "PLAN"], "needs --keys"),
        (["server", "PLAN", "--keys", "OUT"], "out is not there"),
        (["server", "PLAN", "--listen", "127.0.0.1:99999", "--insecure"], "HOST:PORT"),
        (["server", "PLAN", "--listen", "127.0.0.1:0", "--insecure"], "HOST:PORT"),
        (["server", "PLAN", "--keys", "OUT", "--insecure"], "--insecure works without the keys"),
        (["server", "OUT", "--insecure"], "there is no plan file"),
        (["node", "--socket", "d.sock", "--insecure", "--ca", "ca.crt"], "drop it, or --ca and --key"),
        (["node", "--socket", "d" * 130, "--insecure"], "at most 107 fit"),
        (["node", "--socket", "d.sock", "--insecure", "--name", "../../evil"], "node name '../../evil' must be"),
        (["keys", "--out", "OUT", "--hosts", "fleet.example.org:9092"], "without a port"),
        (["keys", "--out", "OUT", "--hosts", "https://x/y"], "neither a name nor an address"),
        (["keys", "--out", "OUT", "--hosts", "bad host,??"], "host 'bad host' is neither"),
        (["proxy", "--keys", "OUT"], "lacks ca.crt, server.crt, server.key"),
        (["proxy", "--keys", "OUT", "--superlink", "garbage"], "cannot read 'garbage': write HOST:PORT"),
        (["server", "PLAN", "--port", "99999", "--insecure"], "--port 99999 must lie"),
        (["up", "aggregator=fedavg,fedctta"], "aggregator has 2 values and a fleet takes one"),
        (["up", "--out", "OUT", "nonsense=1"], "unknown key"),
    ],
)
def test_refusals(tmp_path, words, reason):
    pytest.importorskip("flwr")
    plan = tmp_path / "fleet.toml"
    plan.write_text('[run]\ndataset = "shapes-c"\n')
    places = {"PLAN": str(plan), "OUT": str(tmp_path / "out")}
    with pytest.raises(UserError, match=reason):
        call(*(places.get(word, word) for word in words))
    assert list(tmp_path.iterdir()) == [plan]


def test_a_port_that_is_taken_makes_no_folder(tmp_path):
    pytest.importorskip("flwr")
    plan = tmp_path / "fleet.toml"
    plan.write_text('[run]\ndataset = "shapes-c"\n')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(UserError, match="cannot listen at"):
            call("server", str(plan), "--insecure", "--port", port, "--out", str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == [plan]


@pytest.mark.parametrize("holder", [lambda state: Ledger(state, "me")._lock, take])
def test_two_servers_do_not_work_in_one_state_folder(tmp_path, holder):
    pytest.importorskip("flwr")
    plan = tmp_path / "fleet.toml"
    plan.write_text('[fleet]\nstate = "state"\n[run]\ndataset = "shapes-c"\n')
    (tmp_path / "state").mkdir()
    words = ["server", str(plan), "--insecure", "--port", str(free_port()), "--out", str(tmp_path / "out")]
    words += ["--listen", f"127.0.0.1:{free_port()}"]
    with holder(tmp_path / "state"), pytest.raises(UserError, match=r"another server works in .*state: end it"):
        call(*words)
    assert not (tmp_path / "out").exists()


def test_without_flower(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"fedctta\[fleet\]"):
        call("up")
