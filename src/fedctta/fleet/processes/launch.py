"""A whole fleet on one machine: devices, their nodes and the server, from the words of one command.

out/keys/        certificates and node keys              out/server/     the server's ledger
out/fleet.toml   the plan                                out/devices/    a folder a device: state and predictions
out/logs/        one log a part                          out/flower/     Flower's own files
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedctta.errors import UserError
from fedctta.files import require_writable, whole
from fedctta.fleet.methods import choose_methods
from fedctta.fleet.processes import process_specs
from fedctta.fleet.processes.process_specs import Link
from fedctta.fleet.processes.serve import Watch, lead, start_server
from fedctta.fleet.processes.supervisor import Supervisor
from fedctta.fleet.server.plan import build, make_plan, write_plan
from fedctta.fleet.simulation.simulated import LAYOUT
from fedctta.fleet.transport.certificates import make_keys
from fedctta.fleet.transport.framing import LONGEST_PATH
from fedctta.models import model_for
from fedctta.registry import defaults
from fedctta.runs.build import check_parts
from fedctta.runs.cache import Cache
from fedctta.runs.settings import Experiment
from fedctta.streams.clusters import NIID

OPTIONS = ("model", "weights", "batch")  # of a device, not words of its stream
PACE = 1.0


@dataclass(frozen=True)
class Tryout:
    """A fleet on this machine: how many devices, for how many rounds, what they run (words of `fedctta run`), where."""

    out: Path
    devices: int = 4
    rounds: int = 30
    run: Mapping[str, Any] = field(default_factory=dict)
    fleet: Mapping[str, Any] = field(default_factory=dict)
    lockstep: bool = False
    insecure: bool = False
    pace: float | None = None  # seconds per batch of free-running devices, usually PACE

    def __post_init__(self) -> None:
        for key, least in (("devices", 1), ("rounds", 1), ("pace", 0)):
            if (value := getattr(self, key)) is not None and not value >= least:
                raise UserError(f"--{key} {value} must be at least {least}")
        if self.lockstep and self.pace is not None:
            raise UserError("--pace has no effect with --lockstep, where the server sets the pace: drop one of them")

    @property
    def words(self) -> dict[str, Any]:
        """The words of [run], with the data a try-out has by default; few devices make few clusters."""
        usual: dict[str, Any] = {"dataset": "shapes-c", "clients": self.devices}
        if self.devices < defaults(NIID)["clusters"] and self.run.get("stream", NIID.name) == NIID.name:
            usual[f"{NIID.name}.clusters"] = self.devices
        return choose_methods({**usual, **self.run}, self.lockstep)

    @property
    def settings(self) -> dict[str, Any]:
        """The words of [fleet]."""
        usual = {"state": "server", "rounds": self.rounds, "devices": self.devices, "max_devices": self.devices}
        usual |= {"lockstep": self.lockstep, "deadline": 300.0 if self.lockstep else 30.0, "patience": 600.0}
        return {**usual, **self.fleet}

    def plan(self) -> str:
        """The text of the plan."""
        return write_plan(self.settings, self.words)

    def check(self) -> None:
        """Refuse what devices or server would refuse, without writing or starting anything."""
        plan = make_plan(self.settings, self.words)
        check_parts(plan.experiment, torch.device("cpu"), Cache())
        build(plan)


def up(tryout: Tryout, watch: Watch) -> dict[str, Any]:
    """Start everything, play all rounds, end everything; return the server's last status."""
    out = tryout.out.resolve()
    require_writable(out)
    plan, text = out / "fleet.toml", tryout.plan()
    if plan.exists() and plan.read_text(encoding="utf-8") != text:
        raise UserError(f"{plan} is of another fleet: choose another --out, or repeat its words to continue it")
    tryout.check()
    with whole(plan) as part:
        part.write_text(text, encoding="utf-8")
    keys = None if tryout.insecure else out / "keys"
    if keys is not None and not keys.exists():
        make_keys(keys, (), tryout.devices)
    link, doors, home = Link("127.0.0.1", process_specs.free_port(), keys), _doors(out), out / "flower"
    with Supervisor(out / "logs") as supervisor:
        for k in range(tryout.devices):
            name = f"device-{k}"
            supervisor.start(process_specs.device(name, _device_words(tryout, name, k, doors / f"{k}.sock")))
        for old in home.glob("superlink.db*"):  # nodes and runs of an earlier start; our place is in the ledger
            old.unlink()
        flower = start_server(supervisor, link, home, _public_keys(keys, tryout.devices))
        for k in range(tryout.devices):
            key = None if keys is None else keys / "nodes" / f"device-{k}.key"
            supervisor.start(process_specs.node(link, f"device-{k}", doors / f"{k}.sock", key))
        status = lead(supervisor, flower, plan, watch)
        if tryout.lockstep:
            _let_devices_end(supervisor)
        return status


def _let_devices_end(supervisor: Supervisor, seconds: float = 10.0) -> None:
    """Give devices that predict their last batch the time to write it down."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(t.part.finite and t.state == "running" for t in supervisor.tended.values()):
        time.sleep(0.2)
        supervisor.tend()


def _device_words(tryout: Tryout, name: str, k: int, door: Path) -> list[str]:
    run, usual, folder = tryout.words, defaults(Experiment), tryout.out.resolve() / "devices" / name
    model = model_for(str(run["dataset"]), str(run.get("model", "auto")))
    kinds = tuple(f"{run.get(key, usual[key])}." for key in ("stream", "samples"))
    told = [key for key in run if key.startswith(kinds) or (key in LAYOUT and key not in OPTIONS)]
    stream = ",".join(f"{key}={run[key]}" for key in told)
    adapter = str(run["adapter"])
    words = ["--model", model, "--data", f"stream:{stream},client={k}", "--state", str(folder)]
    words += ["--adapter", adapter, "--socket", str(door), "--batch", str(run.get("batch", 10)), "--device", "cpu"]
    words += ["--weights", str(run["weights"])] if "weights" in run else []
    words += ["--lockstep"] if tryout.lockstep else ["--pace", str(PACE if tryout.pace is None else tryout.pace)]
    return words + [f"{key}={value}" for key, value in run.items() if key.startswith(f"{adapter}.")]


def _doors(out: Path) -> Path:
    """Return a folder for sockets whose names are short enough for the operating system."""
    folder = out / "doors"
    if len(str(folder / "0000.sock").encode()) > LONGEST_PATH:
        return Path(tempfile.mkdtemp(prefix="fedctta-"))
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _public_keys(keys: Path | None, devices: int) -> list[Path]:
    return [] if keys is None else [keys / "nodes" / f"device-{k}.pub" for k in range(devices)]
