"""Flower's command line: what is asked, and what its answers mean."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedctta.errors import UserError
from fedctta.fleet.processes import flower_command
from fedctta.fleet.processes.flower_command import Flower
from fedctta.fleet.processes.process_specs import Link


@pytest.fixture
def flower(tmp_path, monkeypatch):
    """A Flower whose answers are given, and that notes what it was asked."""
    asked, answers = [], []

    def run(words, **options):
        asked.append(list(words[1:]))
        answer = answers.pop(0)
        if answer is None:
            raise subprocess.TimeoutExpired(words, options["timeout"])
        return SimpleNamespace(stdout=answer, stderr="no such host")

    monkeypatch.setattr(flower_command, "executable", lambda name: name)
    monkeypatch.setattr(flower_command.subprocess, "run", run)
    return SimpleNamespace(flower=Flower(Link("::1", 9093, None), tmp_path), asked=asked, answers=answers)


@pytest.mark.parametrize("keys", [None, "keys"])
def test_it_is_told_where_the_superlink_is(tmp_path, keys):
    Flower(Link("::1", 9093, keys and tmp_path / keys), tmp_path / "home")
    place = tomllib.loads((tmp_path / "home" / "config.toml").read_text())["superlink"]["fleet"]
    assert place.pop("address") == "[::1]:9093"
    trust = {"root-certificates": str(tmp_path / "keys" / "ca.crt")} if keys else {"insecure": True}
    assert place == trust
    app = tomllib.loads((tmp_path / "home" / "app" / "pyproject.toml").read_text())
    assert app["tool"]["flwr"]["app"]["components"]["serverapp"] == "fedctta.fleet.server.server_app:app"


def test_a_run_is_submitted(flower, tmp_path):
    flower.answers += ['a warning\n{"success": true, "run-id": 12}']
    assert flower.flower.submit(tmp_path / "fleet.toml") == "12"
    (words,) = flower.asked
    assert words[:1] + words[2:3] == ["run", "fleet"]
    assert words[-4:] == ["--run-config", f'plan="{tmp_path / "fleet.toml"}"', "--format", "json"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (json.dumps({"success": False, "error-message": "no\nroom"}), "no room"),
        ("{ torn", "no such host"),
        ("", "no such host"),
        (None, "flwr run took more than 60 s"),
    ],
)
def test_a_run_that_cannot_be_started_is_told(flower, answer, reason):
    flower.answers += [answer]
    with pytest.raises(UserError, match=f"the run cannot be started: {reason}; see the SuperLink's log"):
        flower.flower.submit(Path("fleet.toml"))


def test_a_key_that_is_known_may_be_registered_again(flower):
    flower.answers += ['{"success": true}', '{"error-message": "Already registered"}', '{"error-message": "bad key"}']
    for _ in range(2):
        flower.flower.register(Path("cam.pub"))
    with pytest.raises(UserError, match=r"cam\.pub cannot be registered: bad key"):
        flower.flower.register(Path("cam.pub"))
    assert flower.asked[0][:2] == ["supernode", "register"]


@pytest.mark.parametrize(
    ("answer", "running"),
    [
        ('{"runs": [{"status": "running"}]}', True),
        ('{"runs": [{"status": "finished:completed"}]}', False),
        ('{"runs": []}', True),
        (None, True),
    ],
)
def test_a_run_goes_on_until_it_is_known_to_have_ended(flower, answer, running):
    flower.answers += [answer]
    assert flower.flower.running("12") == running
