"""Commands are safe by default, and carry what is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedctta.errors import UserError
from fedctta.fleet.processes import process_specs
from fedctta.fleet.processes.process_specs import Link

SAFE, OPEN = Link("127.0.0.1", 1234, Path("/keys")), Link("127.0.0.1", 1234, None)


def test_keys_are_used_when_there_are_any():
    command = process_specs.superlink(SAFE, Path("db"), Path("home")).command
    assert "--enable-supernode-auth" in command
    assert "/keys/server.key" in command
    assert "--insecure" not in command
    assert "--root-certificates" in process_specs.superexec(SAFE, Path("home")).command
    node = process_specs.node(SAFE, "d", Path("/d.sock"), Path("/k")).command
    assert node[3:] == ("127.0.0.1:1234", "/d.sock", "/keys/ca.crt", "/k", "/keys/trusted.yaml")


def test_without_keys_it_says_so():
    assert "--insecure" in process_specs.superlink(OPEN, Path("db"), Path("home")).command
    assert process_specs.node(OPEN, "d", Path("/d.sock")).command[3:] == ("127.0.0.1:1234", "/d.sock")


@pytest.mark.parametrize(("link", "keys"), [(SAFE, "/keys"), (OPEN, "-")])
def test_the_superlink_is_always_locked(link, keys):
    command = process_specs.superlink(link, Path("/f/db"), Path("home")).command
    assert command[2:5] == ("fedctta.fleet.transport.superlink", "/f/control.token", keys)


def test_runs_survive_the_superlink():
    command = process_specs.superlink(SAFE, Path("db"), Path("home")).command
    assert command[command.index("--isolation") + 1] == "process"
    assert command[command.index("--database") + 1] == "db"


@pytest.mark.parametrize(
    ("host", "fine"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)]
)
def test_insecure_is_for_loopback(host, fine):
    process_specs.check_insecure([host], insist=True)
    if fine:
        process_specs.check_insecure([host], insist=False)
    else:
        with pytest.raises(UserError, match="--insist"):
            process_specs.check_insecure([host], insist=False)


def test_addresses():
    assert Link("::1", 5, None).address == "[::1]:5"
    assert 0 < process_specs.free_port() < 65536
