"""The configuration of a fleet's server: one TOML file, and the parts that it names.

[fleet]                      how the server runs: the fields of `Plan`
state = "server"
rounds = 100

[run]                        the method and the model, by the same words as `fedctta run`
dataset = "shapes-c"
adapter = "bn"               without both, they are those of `methods`
aggregator = "fedctta"
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import torch

from fedctta.adapters import adapters
from fedctta.aggregators import Server, aggregators
from fedctta.core.clients import choose_lift
from fedctta.core.network import Network
from fedctta.data.dense import is_dense
from fedctta.errors import UserError, unknown
from fedctta.fleet.agreement import terms_of
from fedctta.fleet.methods import choose_methods, refuse_lockstep
from fedctta.fleet.server.collaboration import Hub
from fedctta.fleet.server.examine import Examiner
from fedctta.fleet.transport.wire import Note
from fedctta.models import model_for
from fedctta.registry import parameters_of, read
from fedctta.runs.cache import Cache
from fedctta.runs.preset_files import read_toml
from fedctta.runs.settings import Experiment, dotted, refuse_idle_guards, single
from fedctta.runs.source_models import load_module
from fedctta.uploads.late_uploads import Late
from fedctta.uploads.robust import BOUND, Robust

_NOISE = "noise is a device's own: start devices with --epsilon"
_LIARS = "real devices lie by themselves: drop it, or try it with fedctta run"
_LATE = "real devices are late by themselves: drop it; `deadline`, `stale` and `decay` say what follows"
_HEALTH = "devices watch their own health: start them with --check and --guard"
_SIMULATED = "it is for simulations: drop it"
IDLE = {
    **dict.fromkeys(("noise", "epsilon", "delta"), _NOISE),
    **dict.fromkeys(("liars", "lie", "lie_until"), _LIARS),
    **dict.fromkeys(("stragglers", "delay"), _LATE),
    **dict.fromkeys(("check", "guard"), _HEALTH),
    **dict.fromkeys(("interval", "retention", "precision", "storage", "engine"), _SIMULATED),
}
"""Keys of an experiment that nothing in a fleet would heed, and what to do instead."""

_LONGEST = 1e7  # seconds
LIMITS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("rounds", "quarantine"), (1, 10**9)),
    **dict.fromkeys(("devices", "max_devices", "classes"), (1, 10**6)),
    **dict.fromkeys(("pause", "patience", "retry"), (0, _LONGEST)),
    **dict.fromkeys(("deadline", "ttl"), (0.01, _LONGEST)),
    "poll": (0.001, 60),
    "quorum": (1e-6, 1),
    "max_megabytes": (0.001, 2048),
    "norm_bound": (1e-6, 1e9),
    "quarantine_rounds": (0, 10**9),
    "size": (1, 10**5),
}
"""The least and the most that the numbers of a plan may be."""


@dataclass(frozen=True)
class Plan:
    """How the server runs. Times are in seconds.

    The first round waits for `devices` devices; there are rows for `max_devices`. A round is closed when all devices
    that were asked have answered, or `deadline` after it began if a share `quorum` has; rounds begin at least `pause`
    apart. A message expires after `ttl`; a device that had nothing or failed is asked again after `retry`. With
    `patience`, the run ends when no device has answered for this time. Devices may upload at most `max_megabytes`, and
    tensors of at most `norm_bound` times the source's norm (see `examine`).
    """

    state: str = "server"
    rounds: int = 100
    devices: int = 1
    max_devices: int = 64
    lockstep: bool = False
    pause: float = 0.0
    deadline: float = 30.0
    quorum: float = 0.5
    ttl: float = 120.0
    patience: float = 0.0
    poll: float = 0.3
    retry: float = 2.0
    max_megabytes: float = 64.0
    norm_bound: float = BOUND
    quarantine: int = 3
    quarantine_rounds: int = 10
    classes: int = 10
    size: int = 32
    experiment: Experiment = field(default_factory=Experiment)

    def __post_init__(self) -> None:
        for key, (least, most) in LIMITS.items():
            if not least <= getattr(self, key) <= most:
                raise UserError(f"{key}={getattr(self, key)} must lie between {least} and {most}")
        if self.devices > self.max_devices:
            raise UserError(f"devices={self.devices} are more than max_devices={self.max_devices}: raise the latter")


def load_plan(path: Path) -> Plan:
    """Read a plan; a relative state folder lies beside the file."""
    content = read_toml(path, "plan")
    for key in content:
        if key not in ("fleet", "run"):
            raise unknown(f"table in {path.name}", key, ("fleet", "run"))
    plan = make_plan(content.get("fleet", {}), dotted(content.get("run", {})))
    return Plan(**{**_values(plan), "state": str(path.parent / plan.state)})


def make_plan(fleet: dict[str, Any], run: dict[str, Any]) -> Plan:
    """Make a plan of the words of its two tables."""
    hints = {key: hint for key, hint in get_type_hints(Plan).items() if key != "experiment"}
    for key in fleet:
        if key not in hints:
            raise unknown("key of [fleet]", key, hints)
    if run.get("predict") == "before":
        raise UserError("predict=before is for simulations, a device predicts after adapting: drop the key")
    for key, reason in IDLE.items():
        if key in run:
            raise UserError(f"{key} in a plan has no effect, {reason}")
    values = {key: read(value, hints[key], key) for key, value in fleet.items()}
    run = choose_methods(run, values.get("lockstep", Plan.lockstep))
    experiment = single(run, strict=True)
    refuse_idle_guards({key: [getattr(experiment, key)] for key in ("cap", "clip", "trim")}, [experiment])
    plan = Plan(**values, experiment=experiment)
    if experiment.robust == "check" and plan.norm_bound <= BOUND:
        raise UserError("robust=check has no effect in a fleet, whose server checks every upload: drop it")
    cumulative = aggregators.classes()[experiment.aggregator].cumulative
    if plan.lockstep and experiment.min_batch > experiment.batch and not cumulative:
        raise UserError(
            f"min_batch={experiment.min_batch} is above batch={experiment.batch}, so that no device would share"
            " anything and lock-step wait for ever: lower min_batch, or raise batch"
        )
    return plan


def write_plan(fleet: dict[str, Any], run: dict[str, Any]) -> str:
    """Return the TOML text of a plan, after reading it once."""
    make_plan(fleet, run)
    lines = ["[fleet]", *(f"{key} = {_toml(value)}" for key, value in fleet.items())]
    plain = {key: value for key, value in run.items() if "." not in key}
    lines += ["", "[run]", *(f"{key} = {_toml(value)}" for key, value in plain.items())]
    lines += [f"{key} = {_toml(value)}" for key, value in run.items() if "." in key]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _values(plan: Plan) -> dict[str, Any]:
    return {f.name: getattr(plan, f.name) for f in fields(plan)}


def build(plan: Plan) -> tuple[Hub, Examiner]:
    """Load the model, make the methods, and say what an upload must look like."""
    experiment = plan.experiment
    if is_dense(experiment.dataset):
        raise UserError("a fleet's server does not take models that predict every pixel yet: use fedctta run")
    model = model_for(experiment.dataset, experiment.model)
    network = Network(load_module(experiment.dataset, model, experiment.weights, plan.classes))
    adapter = experiment.method(adapters, experiment.adapter)
    aggregator = experiment.method(aggregators, experiment.aggregator)
    if plan.lockstep:
        refuse_lockstep(adapter)
    adapter.check(network, experiment.batch)
    aggregator.require_partner(adapter.name, adapter.init(network).own)
    if aggregator.upper_bound or not aggregator.communicates:
        raise UserError(
            f"aggregator {aggregator.name!r} has nothing for a server to do: use another one, as"
            f" {Experiment.aggregator}"
        )
    client = adapter.init(network)
    aggregator.check(network, client.own)
    images = partial(Cache().public_images, experiment, device=network.device)
    shape = (3, plan.size, plan.size)
    lift = choose_lift(experiment.lift, network, client, experiment.batch)
    server = Server(network, lift, experiment.seed, shape, plan.max_devices, images)
    robust = Robust(experiment.robust, experiment.cap, experiment.clip, experiment.trim)
    robust.check(aggregator, adapter.measures)
    late = Late(experiment.stale, experiment.decay, aggregator.cumulative)
    shared, handed = aggregator.shares(network, client.own), aggregator.hands(client.private)
    hub = Hub(aggregator, server, shared, late, robust, handed)
    with torch.no_grad():
        signals = aggregator.signal(network, client, torch.rand(2, *shape))
    variances = frozenset(name for name in network.statistics if name.endswith("running_var"))
    limit = int(plan.max_megabytes * 2**20)
    terms = terms_of(network, adapter)
    sums, least = aggregator.cumulative, experiment.min_batch
    return hub, Examiner(hub.shared, signals, variances, terms, limit, plan.norm_bound, sums, least)


def method_note(hub: Hub) -> Note:
    """Return the aggregator's name and parameters, which tell a device what to share and to compute."""
    return {"aggregator": hub.aggregator.name, "parameters": json.dumps(parameters_of(hub.aggregator))}
