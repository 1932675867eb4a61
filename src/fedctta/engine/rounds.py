"""The round: adapt, upload, aggregate, download, predict, record. With `predict=before`, predicting comes first.

`play` is one round as a pure function of the state; see `simulation` for a whole stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map

from fedctta.adapters import Adapter
from fedctta.aggregators import Aggregator, Server, Uploads
from fedctta.aggregators.common.groups import Groups
from fedctta.aggregators.common.mixing import overall
from fedctta.aggregators.common.row_blocks import mix_blocks
from fedctta.core.clients import Client, InChunks, put, take
from fedctta.core.network import Network, Tensors
from fedctta.core.storage import Storage, server_key, widen
from fedctta.core.tensors import choose_rows
from fedctta.engine.first_clients import first_clients
from fedctta.errors import UserError
from fedctta.uploads.late_uploads import Late
from fedctta.uploads.robust import Robust
from fedctta.uploads.server_half import Mixer, serve
from fedctta.uploads.stages import Stage, Transit


class State(NamedTuple):
    """All that is kept from round to round: the clients, the server's memory, and uploads that have not arrived yet."""

    clients: Client
    memory: Tensors
    post: Tensors = {}  # never changed in place


class Outcome(NamedTuple):
    """What a round gives the tally: logits of the active clients, W if there was an aggregation, bytes sent.

    A W via groups stays one: as a matrix it would have N^2 numbers.
    """

    logits: Tensor
    weights: Tensor | Groups | None
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True)
class Federation:
    """A client method, a server method, and the server."""

    adapter: Adapter
    aggregator: Aggregator
    server: Server
    interval: int = 1
    graphs: Literal["never", "auto", "always"] = "never"  # whether rounds are replayed as CUDA graphs
    stages: tuple[Stage, ...] = (Late(),)  # what happens to uploads before the server's method, in this order
    robust: Robust = field(default_factory=Robust)  # the last of these stages, which also limits how uploads are mixed
    predict: Literal["after", "before"] = "after"  # the round's adaptation and download
    batch: int = 10  # images per client and round, for methods that learn from source images
    storage: Storage | None = None  # None: clients are stored as they compute
    ahead: bool = True  # on a GPU, let the server compute in advance what does not depend on adaptation

    @property
    def trusting(self) -> bool:
        """Whether nothing changes uploads on their way."""
        return self.robust.way == "none" and all(isinstance(stage, Late) for stage in self.stages)

    @property
    def network(self) -> Network:
        """The model's function."""
        return self.server.network

    def start(self) -> State:
        """Return the state before the first round: every client holds the source model."""
        memory = self.aggregator.init(self.server) if self.aggregator.communicates else {}
        server = self.server
        how = (self.batch, server.seed, server.clients, self.storage)
        return State(first_clients(self.network, self.adapter, server.images, *how), memory)

    def aggregations(self, rounds: int) -> NDArray[np.int64]:
        """Return the rounds that end with an aggregation."""
        return np.arange(self.interval - 1, rounds if self.aggregator.communicates else 0, self.interval)

    def play(
        self,
        state: State,
        t: int,
        x: Tensor,
        active: Tensor,
        domain: Tensor | None,
        joined: Tensor | None = None,
        delay: Tensor | None = None,
    ) -> tuple[State, Outcome]:
        """Play round t on the active clients' batches x[A, B, ...].

        `domain` is for an upper bound only. `joined`[N] marks clients that were absent in the round before.
        `delay`[N] says by how many rounds each upload is late (None: no upload is ever late).
        """
        who = slice(None) if len(x) == len(active) else active.nonzero().squeeze(1)
        clients, down = (state.clients, 0) if joined is None else self.welcome(state, x, active, joined)
        present, early = self.begin(take(clients, who), x)
        if self.adapter.reviews:
            present = self._review_due(present, x)
        state = state._replace(clients=put(clients, who, present))
        state, outcome = self.finish(state, t, x, active, domain, early, delay)
        return state, outcome._replace(bytes_down=outcome.bytes_down + down)

    def begin(self, clients: Client, x: Tensor) -> tuple[Client, Tensor | None]:
        """Let the present clients adapt; return them, and logits if batches are predicted by now."""
        early = self._each(self.adapter.predict_before, clients, x) if self.predict == "before" else None
        if self.adapter.waits:
            return self._each(self.adapter.adapt, clients, x), early
        adapted: tuple[Client, Tensor] = self._each(self.adapter.adapt_and_predict, clients, x)
        return adapted

    def finish(
        self,
        state: State,
        t: int,
        x: Tensor,
        active: Tensor,
        domain: Tensor | None,
        early: Tensor | None,
        delay: Tensor | None = None,
    ) -> tuple[State, Outcome]:
        """Upload, aggregate and download if it is time, and predict what was not predicted before."""
        lift, network, clients = self.server.lift, self.network, state.clients
        everyone = len(x) == len(active)
        who = slice(None) if everyone else active.nonzero().squeeze(1)
        present = take(clients, who)
        memory, post, up, down = state.memory, state.post, 0, 0
        weights: Tensor | Groups | None = None
        if self.aggregator.communicates and (t + 1) % self.interval == 0:
            signals = lift(partial(self.aggregator.signal, network))(present, x)
            if not everyone:
                signals = {n: s.new_zeros(len(active), *s.shape[1:]).index_copy(0, who, s) for n, s in signals.items()}
            stored = self.aggregator.shares(network, clients.own)
            mixer = self._choose_mixer(clients.private, delay)
            shared = widen(stored) if self.storage is not None and mixer is None else stored
            transit = Transit(t, Uploads(shared, signals, active, domain), active, active, x, who, delay, post)
            for stage in self.stages:
                transit = stage.handle(self.server, transit)
            handed = self.aggregator.hands(clients.private)
            served = serve(self.server, self.aggregator, self.robust, transit, shared | handed, memory, mixer)
            clients = take_up(clients, self._store(served.received, clients.private))
            memory, post, receive = served.memory, transit.post, served.receive
            weights = served.mixing if isinstance(served.mixing, Groups) else overall(served.mixing, shared)
            down = (len(x) if receive is active else int(receive.sum())) * bytes_each(stored | handed)
            up = len(x) * (bytes_each(stored) + bytes_each(signals))
            if self.adapter.receives:
                clients = self._receive(clients, x, active, receive)

        logits = self._each(self.adapter.predict, take(clients, who), x) if early is None else early
        return State(clients, memory, post), Outcome(logits, weights, up, down)

    def _each(self, function: Callable[..., Any], clients: Client, x: Tensor) -> Any:
        """Apply a function of one client and its batch to all."""
        return self.server.lift(partial(function, self.network))(clients, x)

    def _choose_mixer(self, private: Tensors, delay: Tensor | None) -> Mixer | None:
        """Return how to mix models where they are, or as they are stored, if nothing but the mixing reads them."""
        lift, storage = self.server.lift, self.storage
        in_place = isinstance(lift, InChunks) and lift.in_place
        if not (in_place or storage) or not (self.aggregator.only_mixes and self.trusting and delay is None):
            return None
        key = None if storage is None else server_key(private)
        return partial(mix_blocks, in_place=in_place, storage=storage, key=key)

    def _store(self, own: Tensors, private: Tensors) -> Tensors:
        """Return what clients received from the server as they store it."""
        return own if self.storage is None else self.storage.narrow(own, server_key(private), stacked=True)

    def find_due(self, clients: Client) -> Tensor:
        """Return which of the clients are to review their batches, [A]."""
        due: Tensor = self.server.lift(self.adapter.is_due)(clients)
        return due

    def review(self, clients: Client, x: Tensor, due: Tensor) -> Client:
        """Let the clients in the mask look at their batches once more; all compute, so the host need not know who."""
        reviewed = self._each(self.adapter.review, clients, x)
        chosen: Client = tree_map(partial(choose_rows, due), reviewed, clients)
        return chosen

    def _review_due(self, clients: Client, x: Tensor) -> Client:
        """Let the clients that are due look at their batches once more; others compute nothing."""
        due = self.find_due(clients)
        if not due.any():
            return clients
        who = slice(None) if due.all() else due.nonzero().squeeze(1)
        return put(clients, who, self._each(self.adapter.review, take(clients, who), x[who]))

    def welcome(self, state: State, x: Tensor, active: Tensor, joined: Tensor) -> tuple[Client, int]:
        """Return the clients after the server has sent its model to those that joined, and the bytes it sent."""
        if not self.aggregator.communicates:
            return state.clients, 0
        shared = self.aggregator.shares(self.network, state.clients.own)
        greeted = self.aggregator.welcome(shared, joined, state.memory)
        if greeted is shared:
            return state.clients, 0
        greeted = self._store(greeted, state.clients.private)
        clients = state.clients._replace(own={**state.clients.own, **greeted})
        clients = self._receive(clients, x, active, joined) if self.adapter.receives else clients
        return clients, int(joined.sum()) * bytes_each(greeted)

    def _receive(self, clients: Client, x: Tensor, active: Tensor, receive: Tensor) -> Client:
        """Call `Adapter.receive` for the clients in the mask `receive`, which are all active."""
        if receive is active and len(x) == len(active):
            return put(clients, slice(None), self._each(self.adapter.receive, clients, x))
        who = receive.nonzero().squeeze(1)
        if not len(who):
            return clients
        return put(clients, who, self._each(self.adapter.receive, take(clients, who), x[receive[active]]))


def take_up(clients: Client, received: Tensors) -> Client:
    """Return the clients with what the server sent: parts of their models, or of what they keep privately."""
    own = {name: tensor for name, tensor in received.items() if name not in clients.private}
    private = {name: tensor for name, tensor in received.items() if name in clients.private}
    return clients._replace(own={**clients.own, **own}, private={**clients.private, **private})


def bytes_each(tensors: Tensors) -> int:
    """Bytes of one client's share of stacked tensors."""
    return sum(t[0].numel() * t.element_size() for t in tensors.values())


def flatten(state: State) -> Tensors:
    """Return the state as one flat dictionary of tensors."""
    parts = {"own": state.clients.own, "private": state.clients.private, "memory": state.memory, "post": state.post}
    return {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}


def unflatten(like: State, tensors: Tensors, path: Path) -> State:
    """Undo `flatten`; clients must have the shapes of `like`, memory and post may have more names than at the start."""
    parts: dict[str, Tensors] = {"own": {}, "private": {}, "memory": {}, "post": {}}
    for key, tensor in tensors.items():
        part, _, name = key.partition(".")
        if part in parts:
            parts[part][name] = tensor
    want = {"own": like.clients.own, "private": like.clients.private}
    fits = all(
        parts[part].keys() == model.keys() and all(parts[part][n].shape == model[n].shape for n in model)
        for part, model in want.items()
    )
    if not fits:
        raise UserError(f"{path} does not fit this run: delete it, or run without --resume")
    return State(Client(parts["own"], parts["private"]), parts["memory"], parts["post"])
