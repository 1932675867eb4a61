"""The work of one cell, the same for all ways: a model with random weights and a stream of random inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from fedctta.bench.cells import Cell
from fedctta.bench.shapes import build_model, make_data
from fedctta.data.masked import AnyDomains
from fedctta.engine.rounds import Federation
from fedctta.errors import UserError
from fedctta.keys import Precision, Stored
from fedctta.models.inputs import read_batch
from fedctta.runs.build import Parts, choose_parts, federate
from fedctta.runs.cache import Cache
from fedctta.runs.settings import Experiment
from fedctta.streams import Stream

POOL = 1000  # inputs to draw from: pixels do not matter for speed


@dataclass(frozen=True)
class Work:
    """So many rounds of one cell on a device."""

    cell: Cell
    rounds: int
    device: torch.device
    precision: Precision = "float32"
    storage: Stored = "float32"

    @cached_property
    def source(self) -> nn.Module:
        """The source model, on the CPU."""
        return build_model(self.cell.shape)

    @cached_property
    def data(self) -> AnyDomains:
        """One domain of random inputs."""
        return make_data(self.cell.shape, max(POOL, self.rounds * self.cell.batch))

    @property
    def stream(self) -> Stream:
        """Which images every client sees in every round."""
        return self._parts.stream

    def federation(self) -> Federation:
        """Make the federation just as `fedctta run` does, its lifting included; nothing is done before its round.

        A method that reviews some batches is measured in its usual rounds: how often it reviews depends on the stream.
        """
        methods = self._parts.methods
        usual = methods._replace(adapter=methods.adapter.without_reviews())
        return replace(federate(self._experiment, self._parts._replace(methods=usual)), ahead=False)

    @cached_property
    def _parts(self) -> Parts:
        """All that the federation is made of; images are dealt to thousands of clients once."""
        return choose_parts(self._experiment, self.device, Cache({"model": self.source, "dataset": self.data}))

    @property
    def _experiment(self) -> Experiment:
        return Experiment(
            dataset="noise",
            model=self.cell.model,
            adapter=self.cell.adapter,
            aggregator=self.cell.aggregator,
            stream="iid",
            samples="overlap",
            clients=self.cell.clients,
            batch=self.cell.batch,
            slots=self.rounds,
            precision=self.precision,
            storage=self.storage,
        )

    def read(self, t: int) -> tuple[Tensor, Tensor]:
        """Return images x[N, B, ...] on the device and their labels[N, B] on the CPU."""
        slot = self.stream.slot(t)
        return read_batch(slot.images, self.device), torch.from_numpy(slot.labels)


def find_refusal(cell: Cell, device: torch.device, storage: Stored = "float32") -> str | None:
    """Say why a cell's model and methods do not fit together, if they do not."""
    try:
        Work(cell, 1, device, storage=storage).federation()  # making it checks everything
    except UserError as error:
        return str(error)
    return None
