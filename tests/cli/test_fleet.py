"""The commands say what they do, and refuse what is not safe."""

from __future__ import annotations

import json
import time

import pytest
from typer.testing import CliRunner

from fedctta.cli import app
from fedctta.errors import UserError
from fedctta.fleet.transport.certificates import make_keys


def call(*words):
    done = CliRunner().invoke(app, ["fleet", *words])
    if isinstance(done.exception, UserError):
        raise done.exception
    return done


def test_all_commands_are_there():
    text = call("--help").output
    for name in ("up", "keys", "server", "node", "device", "status", "proxy"):
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
    keys = tmp_path / "k"
    call("keys", "--out", str(keys))
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
    make_keys(tmp_path / "old", [], 1, days=0)
    with pytest.raises(UserError, match="ended on"):
        call(*words[:4], str(tmp_path / "old" / "ca.crt"), *words[5:])


def test_status(tmp_path):
    with pytest.raises(UserError, match=r"no status\.json"):
        call("status", str(tmp_path))
    node = {"device": "cam", "node": "1", "online": True, "refused": 2, "ignored": False}
    told = {"doing": "running", "round": 3, "rounds": 9, "nodes": [node], "refused": 2, "written": time.time()}
    (tmp_path / "status.json").write_text(json.dumps(told))
    line = {"round": 2, "device": "cam", "node": "1", "reason": "[bold]"}
    (tmp_path / "refusals.jsonl").write_text(json.dumps(line) + "\n")
    text = call("status", str(tmp_path)).output
    assert "round 3 of 9: running" in text
    assert "cam" in text
    assert "refused in round 2: cam: [bold]" in text


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["node", "--socket", "d.sock"], "needs --ca and --key"),
        (["node", "--socket", "d.sock", "--server", "10.0.0.1:1", "--insecure"], "--insist"),
        (["node", "--socket", "d.sock", "--server", "nonsense"], "HOST:PORT"),
        (["server", "PLAN", "--listen", "0.0.0.0:1", "--insecure"], "--insist"),
        (["server", "PLAN"], "needs --keys"),
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


def test_without_flower(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"fedctta\[fleet\]"):
        call("up")
