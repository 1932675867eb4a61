"""How long runs will take, told by finished ones that are like them.

What a run costs is decided by its model and its adapter first, then by how many images it shows, then by the rest. So
the seconds of a finished run of the same model, adapter and stream are scaled by the slots, clients and images per
batch; the more else agrees, the better. A run in another stream counts if all else agrees. Where there is none of
these, nothing is said. A run that shows a public set for as long as it has images is not scaled.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fedctta.data.public_sets import PUBLIC
from fedctta.models import model_for
from fedctta.papers.pool import Kept
from fedctta.runs.build import DEFAULT_SLOTS, choose_methods
from fedctta.runs.settings import Experiment

Kind = tuple[object, ...]


class Cost(NamedTuple):
    """Seconds of a run, and what computes it: "GPU" or "CPU"."""

    seconds: float
    on: str


class _Load(NamedTuple):
    """What decides the cost of a run; `slots`, `clients` and `batch` scale it."""

    model: str
    adapter: str
    dataset: str
    aggregator: str
    stream: str
    slots: int  # 0: as many as there are images for
    clients: int
    batch: int

    def kinds(self) -> tuple[Kind, ...]:
        """Return what another run may share with this one, nearest first."""
        near = (self.model, self.adapter, self.stream)
        return (
            (*near, self.dataset, self.aggregator, self.batch, self.clients),
            (*near, self.dataset, self.aggregator, self.batch),
            (*near, self.dataset, self.batch),
            (*near, self.batch),
            near,
            (self.model, self.adapter, self.dataset, self.aggregator, self.batch, self.clients, self.slots),
        )

    @property
    def images(self) -> int:
        """Return how many images a domain lasts for all clients; 0 where that is not known."""
        return self.slots * self.clients * self.batch


class Costs:
    """Estimates from the finished runs of a pool; those of a GPU count where there are any."""

    def __init__(self, runs: Iterable[Kept]) -> None:
        self._found: dict[tuple[str, Kind], list[tuple[float, int]]] = {}
        for run in runs:
            on = "GPU" if str(run.settings.get("device", "")).startswith("cuda") else "CPU"
            load = _of_run(run)
            for kind in load.kinds():
                self._found.setdefault((on, kind), []).append((run.seconds, load.images))

    def estimate(self, experiment: Experiment) -> Cost | None:
        """Return what a run would cost: the median of the runs that are most like it; None if none is like it."""
        load = _of_experiment(experiment)
        for on in ("GPU", "CPU"):
            for kind in load.kinds():
                if found := self._found.get((on, kind)):
                    scaled = [seconds * ((load.images or images) / images) for seconds, images in found]
                    return Cost(float(np.median(scaled)), on)
        return None


def _of_run(run: Kept) -> _Load:
    model, adapter, dataset, aggregator, stream = (
        str(run.settings[key]) for key in ("model", "adapter", "dataset", "aggregator", "stream")
    )
    slots, clients, batch = (int(run.settings[key]) for key in ("slots", "clients", "batch"))
    return _Load(model, adapter, dataset, aggregator, stream, slots, clients, batch)


def _of_experiment(experiment: Experiment) -> _Load:
    public = PUBLIC.get(experiment.dataset)
    model = model_for(experiment.dataset, experiment.model, public is not None and public.dense)
    clients = choose_methods(experiment).count_clients(experiment)
    words = {key: getattr(experiment, key) for key in ("adapter", "dataset", "aggregator", "stream", "batch")}
    slots = experiment.slots or (DEFAULT_SLOTS if public is None else 0)
    return _Load(model=model, slots=slots, clients=clients, **words)
