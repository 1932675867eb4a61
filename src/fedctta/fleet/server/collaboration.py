"""One round of the server as a pure function: uploads by row in, downloads by row and W out.

The server keeps one row per device, for the largest number of devices it will serve, so that what an aggregator
remembers of N clients keeps its shape while devices come and go. A row without an upload holds what the device last
received and has no weight:

    downloads, memory, W = serve(uploads, memory)            (`fedctta.uploads.server_half`)

as in a simulation. A device is asked for an upload only after it has answered the question before, and once per round:
no round has a late and a new upload of one device.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from fedctta.aggregators import Aggregator, Server, Uploads, overall
from fedctta.core.clients import Client, stack
from fedctta.core.network import Tensors
from fedctta.uploads.late_uploads import Late
from fedctta.uploads.robust import Robust
from fedctta.uploads.server_half import serve
from fedctta.uploads.stages import Transit


@dataclass(frozen=True)
class Upload:
    """What one device sent, and by how many rounds it is late."""

    own: Tensors
    signals: Tensors = field(default_factory=dict)
    age: int = 0


class Standing(NamedTuple):
    """What is kept from round to round: what every device last received, one row each, and the aggregator's memory."""

    rows: Tensors
    memory: Tensors


class Closed(NamedTuple):
    """The result of a round: the new standing, W, and the rows whose devices receive their new model."""

    standing: Standing
    weights: Tensor
    receivers: tuple[int, ...]


@dataclass(frozen=True)
class Hub:
    """A server method with `server.clients` rows. `shared` is what a device with the source model uploads."""

    aggregator: Aggregator
    server: Server
    shared: Tensors
    late: Late = field(default_factory=Late)
    robust: Robust = field(default_factory=Robust)

    def start(self) -> Standing:
        """Return the standing before the first round: every row is the source model."""
        return Standing(stack(Client(self.shared), self.server.clients).own, self.aggregator.init(self.server))

    def close(
        self, standing: Standing, uploads: Mapping[int, Upload], receivers: Collection[int] | None = None
    ) -> Closed:
        """Mix the uploads by row; `receivers` get their mixture (None: all that sent something that counts)."""
        with torch.no_grad():
            return self._close(standing, uploads, receivers)

    def _close(self, standing: Standing, uploads: Mapping[int, Upload], receivers: Collection[int] | None) -> Closed:
        count, device = self.server.clients, self.server.network.device
        trust = torch.zeros(count, device=device)
        for row, upload in uploads.items():
            trust[row] = self.late.trust(upload.age)
        rows = {name: _lay({r: u.own[name] for r, u in uploads.items()}, old) for name, old in standing.rows.items()}
        names = dict.fromkeys(name for upload in uploads.values() for name in upload.signals)
        signals = {name: _lay({r: u.signals[name] for r, u in uploads.items()}, None, count) for name in names}

        active = trust > 0
        # A copy, not `active` itself: rows of uploads that are refused for their age must not be kept.
        receive = active.clone() if receivers is None else mask(receivers, count, device)
        punctual = all(upload.age == 0 for upload in uploads.values())
        held = Uploads(rows, signals, active, None, None if punctual and receivers is None else trust)
        transit = Transit(0, held, active, receive)
        served = serve(self.server, self.aggregator, self.robust, transit, standing.rows, standing.memory)
        weights = overall(served.mixing, rows)
        weights = weights.to_dense() if weights.is_sparse else weights
        receiving = tuple(served.receive.nonzero().flatten().tolist())
        return Closed(Standing(served.received, served.memory), weights, receiving)

    def welcome(self, standing: Standing, joined: Collection[int]) -> Standing | None:
        """Return the standing after the rows `joined` were sent the server's model; None if the server has none."""
        who = mask(joined, self.server.clients, self.server.network.device)
        greeted = self.aggregator.welcome(standing.rows, who, standing.memory)
        return None if greeted is standing.rows else Standing(greeted, standing.memory)


def mask(rows: Collection[int], count: int, device: torch.device) -> Tensor:
    """Return the rows as a mask[count]."""
    chosen = torch.zeros(count, dtype=torch.bool, device=device)
    chosen[list(rows)] = True
    return chosen


def _lay(sent: Mapping[int, Tensor], old: Tensor | None, count: int = 0) -> Tensor:
    """Lay the sent rows over the old ones, or over zeros[count, ...]."""
    first = next(iter(sent.values()), None)
    if old is None:
        assert first is not None
        old = first.new_zeros(count, *first.shape)
    if first is None:
        return old
    return old.index_copy(
        0, torch.tensor(list(sent), device=old.device), torch.stack(list(sent.values())).to(old.device)
    )
