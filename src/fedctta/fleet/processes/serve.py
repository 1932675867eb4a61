"""The server's part of a fleet: what is started in which order, and a run that continues after any process dies."""

from __future__ import annotations

import logging
import shutil
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedctta.errors import UserError, reason
from fedctta.fleet.processes import process_specs
from fedctta.fleet.processes.flower_command import Flower, make_token
from fedctta.fleet.processes.guard import signal_group
from fedctta.fleet.processes.keyring import Keyring
from fedctta.fleet.processes.process_specs import Link
from fedctta.fleet.processes.supervisor import Supervisor
from fedctta.fleet.server.bindings import write_bindings
from fedctta.fleet.server.ledger import at_work
from fedctta.fleet.server.plan import Plan, load_plan
from fedctta.fleet.server.status_table import read_status

log = logging.getLogger("fedctta.fleet")

START = 60.0  # seconds for the SuperLink to answer
ENDED = 60.0  # seconds after a deadline for what devices have left behind
GONE = 5.0  # seconds without news from the server after which it is looked for
SILENCE = 20.0  # and after which Flower is asked for its run
LEAST = 1 << 20  # bytes, below which a disk is called full


Watch = Callable[[Supervisor, dict[str, Any]], None]


def start_server(
    supervisor: Supervisor,
    link: Link,
    home: Path,
    public_keys: Path | Sequence[Path],
    outside: tuple[str, int] | None = None,
) -> Flower:
    """Start SuperLink and process starter, let the nodes with these keys in, and open the gate to the outside.

    The keys are files, or a folder: then keys that are put there later are let in too (`keyring`).
    """
    database = home / "superlink.db"
    require_ports(link, outside)
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)  # uploads pass through Flower's database
    make_token(home)
    supervisor.start(process_specs.superlink(link, database, home / "superlink"))
    _await(link, supervisor, "superlink")
    flower = Flower(link, home)
    if link.keys is not None:
        flower.keyring = Keyring(flower, public_keys, link.keys / "server.crt")
        flower.keyring.agree()
    supervisor.start(process_specs.superexec(link, home / "superexec"))
    if outside is not None:
        supervisor.start(process_specs.gate(*outside, link))
    return flower


def lead(supervisor: Supervisor, flower: Flower, plan: Path, watch: Watch) -> dict[str, Any]:
    """Submit the run, and once more whenever it has died; return its last status when all rounds are played.

    The server is heard whenever its status changes. When that was is told by this process's own clock: the time in the
    status is of a clock that may be set back.
    """
    settings = load_plan(plan)
    state = Path(settings.state)
    if flower.keyring is None:
        write_bindings(state, None)
    else:
        flower.keyring.publish(state)
    last, run = read_status(state).get("written"), flower.submit(plan)
    heard = looked = moved = time.monotonic()
    spoken, before = False, -1  # whether the run has spoken since it was submitted; the round it was in
    while True:
        supervisor.tend()
        if flower.keyring is not None:
            flower.keyring.tend(state)
            if flower.keyring.renewed():
                flower.keyring.publish(state)
                _restart(supervisor, "superlink", "gate")
        status = read_status(state)
        watch(supervisor, status)
        if (written := status.get("written")) != last:
            last, heard, spoken = written, time.monotonic(), True
        if (now := int(status.get("round", 0))) != before:
            before, moved = now, time.monotonic()
        if supervisor.all_done and time.monotonic() - moved > settings.deadline + ENDED:
            raise UserError(
                f"all devices came to the end of their data after {now} rounds: give them more (slots=), a"
                " longer --pace, or fewer rounds"
            )
        if spoken and status.get("doing") == "failed":
            raise UserError(str(status.get("reason", "the server failed: see its log")))
        if spoken and _finished(status, settings):
            return status
        silent = time.monotonic() - max(looked, heard)
        died = silent > GONE and spoken and not at_work(state)  # Flower notices that after a minute
        if died or silent > SILENCE:
            load_plan(plan)  # one that has become wrong is no reason to try for ever
            with suppress(OSError):  # the server has not made its folder yet
                if shutil.disk_usage(state).free < LEAST:
                    log.warning("the disk of %s is full: the fleet goes on when there is room", state)
            with suppress(UserError):  # the SuperLink may be restarting: try again next time
                if died or not flower.running(run):
                    run, spoken = flower.submit(plan), False
            looked = time.monotonic()
        time.sleep(0.5)


def _restart(supervisor: Supervisor, *names: str) -> None:
    """End parts that have read an old certificate; the supervisor starts them again, and the run goes on."""
    for name in names:
        if name in supervisor.tended and supervisor.tended[name].state == "running":
            log.warning("the certificate is new: %s starts again", name)
            signal_group(supervisor.tended[name].process.pid, signal.SIGTERM)


def _finished(status: dict[str, Any], plan: Plan) -> bool:
    return status.get("doing") == "finished" and int(status.get("round", 0)) >= plan.rounds


def require_ports(link: Link, outside: tuple[str, int] | None = None) -> None:
    """Refuse ports that are taken."""
    require_free(link.host, link.port, "--port")
    if outside is not None:
        require_free(*outside, "--listen")


def require_free(host: str, port: int, option: str) -> None:
    """Refuse a port at which another program listens: our nodes and runs would be its own."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have just ended do not matter
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(
                f"cannot listen at {host}:{port}: {reason(error)}; end who does, or change {option}"
            ) from error


def _await(link: Link, supervisor: Supervisor, name: str) -> None:
    """Wait until the link's port accepts connections."""
    until = time.monotonic() + START
    while time.monotonic() < until:
        supervisor.tend()
        with suppress(OSError), socket.create_connection((link.host, link.port), timeout=1):
            return
        time.sleep(0.2)
    raise UserError(f"{name} did not come up within {START:.0f} s: {supervisor.tail(name)}")
