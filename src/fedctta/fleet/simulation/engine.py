"""A simulation on Flower's own engine (`engine=flower`), for users who know Flower.

It plays the rounds of a fleet in lock-step with the fleet's own server, so that results are those of `simulate`:

    ServerApp      the conductor of a real fleet; it reads the predictions that come beside the uploads
    ClientApp      one client of the stream per node, by its partition-id (see `partition`)
    engine         `flwr.simulation` on ray, one actor per core

The engine of this package is the default because it is many times faster: it stacks all clients, while Flower sends
every client a message, moves its state to an actor, and back.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedctta.adapters import adapters
from fedctta.engine.tally import Tally
from fedctta.errors import UserError
from fedctta.fleet.flower import ClientApp, Context, Grid, Message, ServerApp
from fedctta.fleet.processes.process_specs import QUIET
from fedctta.fleet.server.conductor import Conductor
from fedctta.fleet.server.ledger import read_collaboration
from fedctta.fleet.server.plan import Plan, build
from fedctta.fleet.simulation.partition import LOGITS, client_app
from fedctta.fleet.transport.flower_messages import Answer, Questions
from fedctta.registry import defaults
from fedctta.runs.settings import Experiment
from fedctta.streams import ABSENT, Stream

ONLY_OURS = (
    *("interval", "predict", "stragglers", "liars", "noise", "epsilon", "min_batch"),
    *("retention", "check", "precision", "storage"),
)

Run = Callable[[ServerApp, ClientApp, int], None]


def simulate_on_flower(
    experiment: Experiment,
    stream: Stream,
    objects: bool = False,
    on_round: Callable[[int, Tally], None] | None = None,
    run: Run | None = None,
) -> Tally:
    """Play the whole stream on Flower's engine, or with `run`, given the two apps and the number of nodes."""
    check(experiment, stream, objects)
    run = run or run_on_ray
    tally = Tally(stream, np.arange(len(stream)), torch.device("cpu"))
    began = perf_counter()
    with TemporaryDirectory(prefix="fedctta-") as folder:
        plan = Plan(
            folder,
            len(stream),
            devices=stream.clients,
            max_devices=stream.clients,
            lockstep=True,
            deadline=3600.0,
            ttl=3600.0,
            poll=0.002,
            classes=len(stream.data.classes),
            size=stream.shape[0],
            experiment=experiment,
        )
        run(server_app(plan, stream, tally, on_round), client_app(experiment), stream.clients)
    tally.accuracy(len(stream))
    tally.seconds += perf_counter() - began
    return tally


def check(experiment: Experiment, stream: Stream, objects: bool) -> None:
    """Refuse what only our own engine supports."""
    usual = defaults(Experiment)
    for key in ONLY_OURS:
        if getattr(experiment, key) != usual[key]:
            raise UserError(f"{key} is not there with engine=flower: drop it, or use engine=fedctta")
    if not adapters.classes()[experiment.adapter].waits:
        raise UserError(
            f"engine=flower plays in lock-step and adapter {experiment.adapter!r} never waits: use engine=fedctta"
        )
    if objects:
        raise UserError("engine=flower takes model and data by name, not as objects: drop it, or give names")
    data, shape = stream.data, stream.shape
    square = data.pictures and shape[0] == shape[1] and shape[2] == 3
    if (stream.domain == ABSENT).any() or data.dense or not square or not stream.all_labelled:
        raise UserError(
            "engine=flower wants clients that are always there, and square colour images with one class each"
        )


def run_on_ray(server: ServerApp, client: ClientApp, nodes: int) -> None:
    """Run both apps on Flower's simulation engine, with one actor per core."""
    if find_spec("ray") is None:
        raise UserError("engine=flower needs ray, which is not installed: pip install 'fedctta[flower-simulation]'")
    os.environ.update(QUIET)  # before Flower and ray look
    from fedctta.fleet.flower import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    ray = {"include_dashboard": False, "logging_level": logging.ERROR, "log_to_driver": False}
    backend: dict[str, Any] = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": ray}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*accelerator visible devices", category=FutureWarning)
        run_simulation(server, client, nodes, backend_config=backend)


def server_app(
    plan: Plan, stream: Stream, tally: Tally, on_round: Callable[[int, Tally], None] | None = None
) -> ServerApp:
    """Return the app that leads the rounds and counts the predictions."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        hub, examiner = build(plan)
        conductor = Conductor(plan, hub, examiner, post := Listening(grid, plan.ttl))
        moved = [0, 0]

        def count(t: int, logits: Tensor) -> None:
            slot, place = stream.slot(t), conductor.place
            domain = torch.from_numpy(slot.domain)
            tally.record(t, logits, torch.from_numpy(slot.labels), domain)
            weights, _ = read_collaboration(Path(plan.state), t)
            tally.record_collaboration(t, weights, domain, (place.bytes_up - moved[0], place.bytes_down - moved[1]))
            moved[:] = place.bytes_up, place.bytes_down
            if on_round is not None:
                on_round(t, tally)

        post.listen(stream.clients, count)
        try:
            conductor.lead()
        finally:
            conductor.ledger.close()
        if conductor.roster.refused:
            raise UserError(f"the server refused uploads of {', '.join(conductor.roster.refused)}: use engine=fedctta")

    return app


class Listening(Questions):
    """Questions that also read the predictions sent with the answers, and end the run at the first failure."""

    def listen(self, clients: int, count: Callable[[int, Tensor], None]) -> None:
        """Have `count` called with the round and logits[N, B, K] as soon as all clients have predicted it."""
        self._clients, self._count = clients, count
        self._heard: dict[int, dict[int, NDArray[np.float32]]] = {}

    def collect(self) -> list[Answer]:
        """Return the answers that have come."""
        answers = super().collect()
        for answer in answers:
            if answer.flat is None:
                raise UserError(f"a client failed on Flower's engine: {answer.error}")
        for t in sorted(t for t, heard in self._heard.items() if len(heard) == self._clients):
            logits = [row for _, row in sorted(self._heard.pop(t).items())]
            self._count(t, torch.from_numpy(np.stack(logits)))
        return answers

    def _pull(self, message_ids: list[str]) -> list[Message]:
        messages = super()._pull(message_ids)
        for message in messages:
            if message.has_content() and LOGITS in message.content.array_records:
                for place, logits in message.content.array_records[LOGITS].items():
                    t, client = map(int, place.split("/"))
                    self._heard.setdefault(t, {})[client] = logits.numpy()
        return messages
