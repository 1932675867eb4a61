"""The server's part of a fleet: what is started in which order, and a run that continues after any process dies."""

from __future__ import annotations

import logging
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedctta.errors import UserError
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
SILENCE = 20.0  # seconds without news from the server after which its run is looked at

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
    """Submit the run, and once more whenever it has died; return its last status when all rounds are played."""
    settings = load_plan(plan)
    if flower.keyring is None:
        write_bindings(Path(settings.state), None)
    else:
        flower.keyring.publish(Path(settings.state))
    began = submitted = looked = time.time()
    run = flower.submit(plan)
    before, moved = -1, time.monotonic()
    while True:
        supervisor.tend()
        if flower.keyring is not None:
            flower.keyring.tend(Path(settings.state))
            if flower.keyring.renewed():
                _restart(supervisor, "superlink", "gate")
        status = read_status(Path(settings.state))
        watch(supervisor, status)
        if (now := int(status.get("round", 0))) != before:
            before, moved = now, time.monotonic()
        if supervisor.all_done and time.monotonic() - moved > settings.deadline + ENDED:
            raise UserError(
                f"all devices came to the end of their data after {now} rounds: give them more (slots=), a"
                " longer --pace, or fewer rounds"
            )
        if _finished(status, settings, began):
            return status
        written = float(status.get("written", 0))
        if time.time() - max(looked, written) > SILENCE:
            died = written > submitted and not at_work(Path(settings.state))  # Flower notices that after a minute
            with suppress(UserError):  # the SuperLink may be restarting: try again next time
                if died or not flower.running(run):
                    submitted, run = time.time(), flower.submit(plan)
            looked = time.time()
        time.sleep(0.5)


def _restart(supervisor: Supervisor, *names: str) -> None:
    """End parts that have read an old certificate; the supervisor starts them again, and the run goes on."""
    for name in names:
        if name in supervisor.tended and supervisor.tended[name].state == "running":
            log.warning("the certificate is new: %s starts again", name)
            signal_group(supervisor.tended[name].process.pid, signal.SIGTERM)


def _finished(status: dict[str, Any], plan: Plan, since: float) -> bool:
    return status.get("doing") == "finished" and status.get("round", 0) >= plan.rounds and status["written"] >= since


def _await(link: Link, supervisor: Supervisor, name: str) -> None:
    """Wait until the link's port accepts connections."""
    until = time.monotonic() + START
    while time.monotonic() < until:
        supervisor.tend()
        with suppress(OSError), socket.create_connection((link.host, link.port), timeout=1):
            return
        time.sleep(0.2)
    raise UserError(f"{name} did not come up within {START:.0f} s: {supervisor.tail(name)}")
