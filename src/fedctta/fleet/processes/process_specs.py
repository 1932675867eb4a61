"""The processes of a fleet as commands: SuperLink, process starter, node, device, gate."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedctta.errors import UserError

# No calls home, no installing of what is installed; a ServerApp is started within half a second.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
    "RAY_USAGE_STATS_ENABLED": "0",
}

TOKEN = "control.token"
"""File with the token of the SuperLink's control API."""


@dataclass(frozen=True)
class ProcessSpec:
    """One process. A part that is `finite` is done when it ends well; all others are started again."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    finite: bool = False


@dataclass(frozen=True)
class Link:
    """Where the SuperLink is, and the folder of keys; without keys nothing is encrypted or authenticated."""

    host: str
    port: int
    keys: Path | None

    @property
    def address(self) -> str:
        """host:port, with an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def trust(self) -> tuple[str, ...]:
        """Return the options with which a client verifies the server."""
        return ("--insecure",) if self.keys is None else ("--root-certificates", str(self.keys / "ca.crt"))


def check_insecure(hosts: Sequence[str], insist: bool) -> None:
    """Refuse to work without keys where other machines can reach the port, unless the user insists."""
    for host in hosts:
        if not is_loopback(host) and not insist:
            raise UserError(f"--insecure with {host} lets anyone who reaches it in: make keys, or add --insist")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
    (True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def free_port() -> int:
    """Return a port of this machine that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def superlink(link: Link, database: Path, home: Path) -> ProcessSpec:
    """Flower's message broker, locked (`transport.superlink`) by the token that lies beside its database.

    The database and a separate process starter let a run survive its death.
    """
    safe: tuple[str, ...] = ("--insecure",)
    if link.keys is not None:
        files = {"ca-certfile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}
        safe = tuple(word for key, file in files.items() for word in (f"--ssl-{key}", str(link.keys / file)))
        safe = (*safe, "--enable-supernode-auth", *_secret(link))
    where = ("--host", link.host, "--port", str(link.port), "--database", str(database))
    how = ("--isolation", "process", "--disable-runtime-dependency-installation")
    keys = "-" if link.keys is None else str(link.keys)
    locked = (sys.executable, "-m", "fedctta.fleet.transport.superlink", str(database.parent / TOKEN), keys)
    return ProcessSpec("superlink", (*locked, *safe, *where, *how), environment(home))


def superexec(link: Link, home: Path) -> ProcessSpec:
    """What starts the ServerApp, and tells nobody its token (`transport.superexec`)."""
    secret = () if link.keys is None else _secret(link)
    ours = (sys.executable, "-m", "fedctta.fleet.transport.superexec")
    command = (*ours, "--runtime-api-address", link.address, *link.trust(), *secret)
    return ProcessSpec("superexec", command, environment(home))


def node(link: Link, name: str, door: Path, key: Path | None = None) -> ProcessSpec:
    """What speaks to the SuperLink for one device; it answers only to the app that trusted.yaml's key has signed."""
    proof: tuple[str, ...] = ()
    if link.keys is not None and key is not None:
        proof = (str(link.keys / "ca.crt"), str(key), str(link.keys / "trusted.yaml"))
    command = (sys.executable, "-m", "fedctta.fleet.transport.node", link.address, str(door), *proof)
    return ProcessSpec(f"node-{name}", command, QUIET)


def device(name: str, words: Sequence[str]) -> ProcessSpec:
    """A device; its words are those of `fedctta device`."""
    command = (sys.executable, "-m", "fedctta", "device", "--name", name, *words)
    return ProcessSpec(name, command, {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}, finite=True)


def gate(host: str, port: int, link: Link) -> ProcessSpec:
    """The only server that other machines can reach; see `gate`."""
    keys = () if link.keys is None else (str(link.keys),)
    return ProcessSpec(
        "gate", (sys.executable, "-m", "fedctta.fleet.transport.gate", host, str(port), link.address, *keys)
    )


def environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's programs; they start other programs of this Python by name."""
    here = str(Path(sys.executable).parent)
    return {**QUIET, "FLWR_HOME": str(home), "PATH": os.pathsep.join((here, os.environ.get("PATH", "")))}


def _secret(link: Link) -> tuple[str, ...]:
    assert link.keys is not None
    return ("--superexec-auth-secret-file", str(link.keys / "superexec.secret"))
