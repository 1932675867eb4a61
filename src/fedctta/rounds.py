"""The round: adapt, upload, aggregate, download, predict, record.

`play` is one round as a pure function of the state; `simulate` walks a stream with it, keeps the tally and saves its
place, so that an interrupted run continues to the same numbers as an unbroken one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedctta.adapters import Adapter
from fedctta.adapters.tensors import named
from fedctta.aggregators import Aggregator, Server, Uploads, mix, overall, restrict
from fedctta.checkpoint import load_checkpoint, postponed_interrupt, save_checkpoint
from fedctta.clients import Client, put, stack, take
from fedctta.errors import UserError
from fedctta.mailbox import choose_rows, collect, send
from fedctta.mailbox import empty as empty_mailbox
from fedctta.models.inputs import to_input
from fedctta.network import Network, Tensors
from fedctta.randomness import keys
from fedctta.streams import ABSENT, Stream
from fedctta.tally import Tally


class State(NamedTuple):
    """All that lives on from round to round: the clients, the server's memory, and uploads on their way."""

    clients: Client
    memory: Tensors
    post: Tensors = {}  # never changed in place


@dataclass(frozen=True)
class Late:
    """What an upload that comes `age` rounds late counts: decay^age, or nothing."""

    stale: Literal["discount", "refuse"] = "discount"
    decay: float = 0.5

    def trust(self, age: Tensor) -> Tensor:
        """Return what uploads of this age count."""
        return torch.zeros(age.shape, device=age.device) if self.stale == "refuse" else self.decay ** age.float()


class Outcome(NamedTuple):
    """What a round gives the tally: logits of the active clients, W if there was an aggregation, bytes moved."""

    logits: Tensor
    collaboration: Tensor | None
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True)
class Federation:
    """A client method and a server method, and the server they meet at."""

    adapter: Adapter
    aggregator: Aggregator
    server: Server
    interval: int = 1
    late: Late = Late()

    @property
    def network(self) -> Network:
        """The model's function."""
        return self.server.network

    def start(self) -> State:
        """Return the state before the first round: every client holds the source model."""
        memory = self.aggregator.init(self.server) if self.aggregator.communicates else {}
        client = self.adapter.init(self.network)
        if self.adapter.source_images:
            learnt = self.adapter.study(self.network, self.server.images(self.adapter.source_images))
            client = client._replace(private={**client.private, **learnt})
        clients = stack(client, self.server.clients)
        if "key" in clients.private:  # a method with chance in it: no two clients shall draw the same
            key = keys(self.server.seed, self.server.clients, self.network.device)
            clients = clients._replace(private={**clients.private, "key": key})
        return State(clients, memory, empty_mailbox(self.server.clients, self.network.device))

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

        `domain` is for an upper bound only. `joined`[N] are those who were not there in the round before, and
        `delay`[N] by how many rounds each upload is late (None: nobody, never).
        """
        lift, network = self.server.lift, self.network
        everyone = len(x) == len(active)
        who = slice(None) if everyone else active.nonzero().squeeze(1)

        clients = state.clients if joined is None else self._welcome(state, x, active, joined)
        present = self._each(self.adapter.adapt, take(clients, who), x)
        clients = put(clients, who, present)

        memory, post, weights, up, down = state.memory, state.post, None, 0, 0
        if self.aggregator.communicates and (t + 1) % self.interval == 0:
            signals = lift(partial(self.aggregator.signal, network))(present, x)
            if not everyone:
                signals = {n: s.new_zeros(len(active), *s.shape[1:]).index_copy(0, who, s) for n, s in signals.items()}
            shared = self.aggregator.shares(network, clients.own)
            uploads, receive = Uploads(shared, signals, active, domain), active
            if delay is not None:
                uploads, receive, post = self._late(uploads, post, t, active, delay)
            mixing, memory = self.aggregator.collaborate(self.server, uploads, memory)
            mixing = restrict(mixing, receive, uploads.trust)
            received, memory = self.aggregator.step(mix(mixing, uploads.own), receive, memory)
            if delay is not None:  # rows of those who do not receive may hold what they sent some rounds ago
                received = {name: choose_rows(receive, new, shared[name]) for name, new in received.items()}
            clients = clients._replace(own={**clients.own, **received})
            weights = overall(mixing, shared)
            there = len(x) if delay is None else int(receive.sum())
            down = there * bytes_each(shared)
            up = len(x) * (bytes_each(shared) + bytes_each(signals))
            if self.adapter.receives:
                clients = self._receive(clients, x, active, receive)

        logits = self._each(self.adapter.predict, take(clients, who), x)
        return State(clients, memory, post), Outcome(logits, weights, up, down)

    def _each(self, function: Callable[..., Any], clients: Client, x: Tensor) -> Any:
        """Apply a function of one client and its batch to all."""
        return self.server.lift(partial(function, self.network))(clients, x)

    def _welcome(self, state: State, x: Tensor, active: Tensor, joined: Tensor) -> Client:
        """Return the clients after the server has greeted those who joined."""
        if not self.aggregator.communicates:
            return state.clients
        shared = self.aggregator.shares(self.network, state.clients.own)
        greeted = self.aggregator.welcome(shared, joined, state.memory)
        clients = state.clients._replace(own={**state.clients.own, **greeted})
        return self._receive(clients, x, active, joined) if self.adapter.receives and greeted is not shared else clients

    def _receive(self, clients: Client, x: Tensor, active: Tensor, receive: Tensor) -> Client:
        """Let the clients in the mask `receive`, who are all active, take in what came."""
        if receive is active and len(x) == len(active):
            return put(clients, slice(None), self._each(self.adapter.receive, clients, x))
        who = receive.nonzero().squeeze(1)
        if not len(who):
            return clients
        return put(clients, who, self._each(self.adapter.receive, take(clients, who), x[receive[active]]))

    def _late(
        self, uploads: Uploads, post: Tensors, t: int, active: Tensor, delay: Tensor
    ) -> tuple[Uploads, Tensor, Tensors]:
        """Return the uploads the server has in round t, those who take part in it, and the mailbox after it.

        A client that is late puts its upload in the mail, keeps its model, and takes no part in this round.
        """
        on_time = active & (delay == 0)
        letters = named("own", uploads.own) | named("signal", uploads.signals)
        post = send(post, letters, active & (delay > 0), t + delay, t)
        delivery, post = collect(post, t)
        arrived = delivery.arrived & ~on_time  # what is newer counts
        own = {n: choose_rows(arrived, delivery.letters[f"own.{n}"], fresh) for n, fresh in uploads.own.items()}
        signals = {n: choose_rows(arrived, delivery.letters[f"signal.{n}"], s) for n, s in uploads.signals.items()}
        trust = torch.where(arrived, self.late.trust(delivery.age), on_time.float())
        return Uploads(own, signals, trust > 0, uploads.domain, trust), on_time, post


class Witness(Protocol):
    """Looks at the state after every round, and is saved and restored with the run."""

    def measure(self, federation: Federation, state: State, t: int) -> None:
        """Look at the state after round t."""

    def tensors(self) -> Tensors:
        """Return everything a resumed run needs."""

    def restore(self, saved: Tensors, path: Path) -> None:
        """Take over what `tensors` gave."""


def bytes_each(tensors: Tensors) -> int:
    """Bytes of one client's share of stacked tensors."""
    return sum(t[0].numel() * t.element_size() for t in tensors.values())


def simulate(
    federation: Federation,
    stream: Stream,
    *,
    checkpoint: Path | None = None,
    fingerprint: str = "",
    save_every: float = 60.0,
    on_round: Callable[[int, Tally], None] | None = None,
    retention: Witness | None = None,
) -> Tally:
    """Walk the whole stream. With `checkpoint`, start from what is saved there and save on the way.

    `retention` is shown the state after every round.

    Ctrl-C finishes the round under way, saves the place and raises KeyboardInterrupt.
    """
    device = federation.network.device
    state, tally, start = federation.start(), Tally(stream, federation.aggregations(len(stream)), device), 0
    if checkpoint is not None and checkpoint.exists():
        start, saved = load_checkpoint(checkpoint, fingerprint)
        state = unflatten(state, saved, device, checkpoint)
        tally.restore(saved, checkpoint)
        if retention is not None:
            retention.restore(saved, checkpoint)

    def save(rounds: int) -> None:
        if checkpoint is not None:
            tally.seconds += perf_counter() - began
            seen = retention.tensors() if retention is not None else {}
            save_checkpoint(checkpoint, fingerprint, rounds, {**flatten(state), **tally.tensors(), **seen})
            tally.seconds -= perf_counter() - began

    began = last_save = perf_counter()
    with torch.no_grad(), postponed_interrupt() as interrupt:
        for t in range(start, len(stream)):
            state = _next(federation, stream, state, tally, t)
            if retention is not None:
                paused = perf_counter()
                retention.measure(federation, state, t)
                began += perf_counter() - paused
            if on_round is not None:
                on_round(t, tally)
            if interrupt.asked:
                save(t + 1)
                raise KeyboardInterrupt
            if perf_counter() - last_save > save_every:
                save(t + 1)
                last_save = perf_counter()
        tally.accuracy(len(stream))
    tally.seconds += perf_counter() - began
    return tally


def _next(federation: Federation, stream: Stream, state: State, tally: Tally, t: int) -> State:
    """Read slot t, play it, record it. Labels and domains go to the tally (and domains to an upper bound) only."""
    slot, device = stream.slot(t), federation.network.device
    if not len(slot.images):
        return state
    domain = torch.from_numpy(slot.domain).to(device)
    active = domain != ABSENT
    x = to_input(slot.images, device)
    came = stream.joined(t)
    state, outcome = federation.play(
        state,
        t,
        x,
        active,
        domain if federation.aggregator.upper_bound else None,
        torch.from_numpy(came).to(device) if came.any() else None,
        None if stream.delay is None else torch.from_numpy(stream.delay[t]).to(device),
    )
    tally.record(t, outcome.logits, torch.from_numpy(slot.labels).to(device), domain)
    if outcome.collaboration is not None:
        tally.record_collaboration(t, outcome.collaboration, domain, (outcome.bytes_up, outcome.bytes_down))
    return state


def flatten(state: State) -> Tensors:
    """Return the state as one flat dictionary of tensors."""
    parts = {"own": state.clients.own, "private": state.clients.private, "memory": state.memory, "post": state.post}
    return {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}


def unflatten(like: State, tensors: Tensors, device: torch.device, path: Path) -> State:
    """Undo `flatten`; clients must have the shapes of `like`, memory and post may have grown names since the start."""
    parts: dict[str, Tensors] = {"own": {}, "private": {}, "memory": {}, "post": {}}
    models = flatten(like)
    for key, tensor in tensors.items():
        part, _, name = key.partition(".")
        if part in parts:
            # The memory layout decides how torch rounds, so it must be that of an unbroken run.
            same = key in models and models[key].shape == tensor.shape
            parts[part][name] = torch.empty_like(models[key]).copy_(tensor) if same else tensor.to(device)
    want = {"own": like.clients.own, "private": like.clients.private}
    fits = all(
        parts[part].keys() == model.keys() and all(parts[part][n].shape == model[n].shape for n in model)
        for part, model in want.items()
    )
    if not fits:
        raise UserError(f"{path} does not fit this run: delete it, or run without --resume")
    # In the order of an unbroken run too, since sums over tensors round by it.
    own, private = ({name: parts[part][name] for name in model} for part, model in want.items())
    return State(Client(own, private), parts["memory"], parts["post"])
