"""What is shipped to set a fleet up says what the commands understand. Nothing is started here."""

from __future__ import annotations

import configparser
import re
import shlex
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
