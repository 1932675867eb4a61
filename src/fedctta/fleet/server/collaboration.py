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
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedctta.aggregators import Aggregator, Server, Uploads
from fedctta.aggregators.common.mixing import overall
from fedctta.core.clients import Client, stack
from fedctta.core.network import Tensors
from fedctta.core.tensors import named
from fedctta.machine import exact
from fedctta.uploads.late_uploads import Late
from fedctta.uploads.robust import Robust
from fedctta.uploads.server_half import serve
from fedctta.uploads.stages import Transit


@dataclass(frozen=True)
class Upload:
    """What one device sent, by how many rounds it is late, and what the server has computed of it."""

    own: Tensors
    signals: Tensors = field(default_factory=dict)
    age: int = 0
    prepared: Tensors = field(default_factory=dict)


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
    """A server method with `server.clients` rows.

    `shared` is what a device with the source model uploads; `handed` is what it keeps and the server replaces.
    """

    aggregator: Aggregator
    server: Server
    shared: Tensors
    late: Late = field(default_factory=Late)
    robust: Robust = field(default_factory=Robust)
    handed: Tensors = field(default_factory=dict)

    def start(self) -> Standing:
        """Return the standing before the first round: every row is the source model."""
        first = Client({**self.shared, **self.handed})
        return Standing(stack(first, self.server.clients).own, self.aggregator.init(self.server))

    def prepare(self, standing: Standing, uploads: Mapping[int, Upload]) -> dict[int, Upload]:
        """Return the uploads with what the aggregator computes of each by itself, while others are awaited.

        Not if uploads are clipped: what counts is known only when all are here.
        """
        new = {row: upload for row, upload in uploads.items() if not upload.prepared}
        if type(self.aggregator).prepare is Aggregator.prepare or self.robust.way == "clip" or not new:
            return dict(uploads)
        device = self.server.network.device
        own = {name: torch.stack([u.own[name] for u in new.values()]).to(device) for name in self.shared}
        with torch.no_grad(), exact():
            found = self.aggregator.prepare(self.server, own, standing.memory)
        prepared = {
            row: replace(upload, prepared={name: rows[k] for name, rows in found.items()})
            for k, (row, upload) in enumerate(new.items())
        }
        return {**uploads, **prepared}

    def close(
        self, standing: Standing, uploads: Mapping[int, Upload], receivers: Collection[int] | None = None
    ) -> Closed:
        """Mix the uploads by row; `receivers` get their mixture (None: all that sent something that counts)."""
        with torch.no_grad():
            return self._close(standing, self.prepare(standing, uploads), receivers)

    def _close(self, standing: Standing, uploads: Mapping[int, Upload], receivers: Collection[int] | None) -> Closed:
        count, device = self.server.clients, self.server.network.device
        trust = torch.zeros(count, device=device)
        for row, upload in uploads.items():
            trust[row] = self.late.trust(upload.age)
        rows = {name: _lay({r: u.own[name] for r, u in uploads.items()}, standing.rows[name]) for name in self.shared}
        told = {r: self.aggregator.put_back(u.signals, r, standing.memory) | u.prepared for r, u in uploads.items()}
        names = dict.fromkeys(name for signals in told.values() for name in signals)
        signals = {name: _lay({r: sent[name] for r, sent in told.items()}, None, count) for name in names}

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
        return Closed(Standing({**standing.rows, **served.received}, served.memory), weights, receiving)

    def welcome(self, standing: Standing, joined: Collection[int]) -> Standing | None:
        """Return the standing after the rows `joined` were sent the server's model; None if the server has none."""
        who = mask(joined, self.server.clients, self.server.network.device)
        shared = {name: standing.rows[name] for name in self.shared}
        greeted = self.aggregator.welcome(shared, who, standing.memory)
        return None if greeted is shared else Standing({**standing.rows, **greeted}, standing.memory)

    def write(self, standing: Standing, row: int, download: bool) -> dict[str, NDArray[Any]]:
        """Return what a device is sent with a question: its row, if it is owed one, and what the server has of it."""
        own = named("own", {name: rows[row] for name, rows in standing.rows.items()}) if download else {}
        arrays = own | named("known", self.aggregator.recount(standing.memory, row))
        return {name: tensor.cpu().numpy() for name, tensor in arrays.items()}


def mask(rows: Collection[int], count: int, device: torch.device) -> Tensor:
    """Return the rows as a mask[count]."""
    chosen = torch.zeros(count, dtype=torch.bool, device=device)
    chosen[list(rows)] = True
    return chosen


def _lay(sent: Mapping[int, Tensor], old: Tensor | None, count: int = 0) -> Tensor:
    """Lay the sent rows over the old ones, or over zeros[count, ...]."""
    first = next(iter(sent.values()), None)
    if first is None:
        assert old is not None
        return old
    count, device = (count, first.device) if old is None else (len(old), old.device)
    if len(sent) == count:  # all of them: one copy instead of three
        return torch.stack([sent[row] for row in range(count)]).to(device)
    under = first.new_zeros(count, *first.shape) if old is None else old
    return under.index_copy(0, torch.tensor(list(sent), device=device), torch.stack(list(sent.values())).to(device))
