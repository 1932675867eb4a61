"""What is shipped to set a fleet up says what the commands understand. Nothing is started here."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest
import typer

from fedctta.cli import app
from fedctta.errors import NoRoom, UserError
from fedctta.fleet.transport.nginx import nginx_config

DEPLOY = Path(__file__).parents[2] / "deploy"


def understood(line):
    """Parse the words of a command, without calling it."""
    command = typer.main.get_command(app)
    words, context = shlex.split(line), click.Context(command)
    while isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    assert command.make_context("fedctta", words, parent=context, resilient_parsing=False)


@pytest.mark.parametrize("name", ["server", "device@", "node@"])
def test_units_call_commands_that_exist(name):
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str
    unit.read(DEPLOY / "systemd" / f"fedctta-{name}.service")
    service = unit["Service"]
    line = service["ExecStart"].removeprefix("/opt/fedctta/bin/fedctta ").replace("%i", "device-0")
    options = "--model resnet8 --data watch:camera"
    understood(line.replace("$OPTIONS", options).replace("${SERVER}", "a:9092"))
    assert service["User"] == "fedctta"
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == str(UserError.code)
    assert service["RestartForceExitStatus"] == str(NoRoom.code)
    assert float(service["RestartSec"]) > 10 / 5  # else systemd gives up after 5 starts within 10 seconds


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
@pytest.mark.parametrize("name", ["server", "device@", "node@"])
def test_systemd_understands_the_units(tmp_path, name):
    """With a program that is there in the place of fedctta's, which need not be installed."""
    text = (DEPLOY / "systemd" / f"fedctta-{name}.service").read_text()
    unit = tmp_path / f"fedctta-{name}.service"
    unit.write_text(text.replace("/opt/fedctta/bin/fedctta", shutil.which("true")))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    unit.write_text(text)  # it does look
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert Path("/opt/fedctta/bin/fedctta").exists() or "not executable" in done.stderr


def test_the_containers_call_commands_that_exist_and_open_one_port():
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())["services"]
    for service in services.values():
        understood(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", service["command"]))
        assert service["read_only"]
    assert {name: service.get("ports") for name, service in services.items()} == {
        "server": ["9092:9092"],
        "device": None,
        "node": None,
    }


def test_the_shipped_proxy_is_the_one_that_is_made():
    made = nginx_config("0.0.0.0", 9092, "127.0.0.1:8080", Path("/etc/fedctta/keys"))
    assert (DEPLOY / "nginx.conf").read_text() == made
