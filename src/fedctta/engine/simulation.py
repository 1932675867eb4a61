"""A whole stream, round by round: read, play, record, and save checkpoints.

An interrupted run continues to the same numbers as an unbroken one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Protocol

import torch

from fedctta.core.network import Tensors
from fedctta.engine.checkpoint import load_checkpoint, postponed_interrupt, save_checkpoint
from fedctta.engine.cuda_graphs import RoundGraphs
from fedctta.engine.device_stream import Batches, DeviceStream, put_on_device
from fedctta.engine.rounds import Federation, State, flatten, unflatten
from fedctta.engine.tally import Tally
from fedctta.errors import UserError
from fedctta.machine import exact
from fedctta.models.inputs import to_input
from fedctta.streams import ABSENT, Stream


class Witness(Protocol):
    """Measures the state after every round; it is saved and restored with the run."""

    def measure(self, federation: Federation, state: State, t: int) -> None:
        """Measure the state after round t."""

    def tensors(self) -> Tensors:
        """Return everything a resumed run needs."""

    def restore(self, saved: Tensors, path: Path) -> None:
        """Restore what `tensors` returned."""


def simulate(
    federation: Federation,
    stream: Stream,
    *,
    checkpoint: Path | None = None,
    fingerprint: str = "",
    save_every: float = 60.0,
    on_round: Callable[[int, Tally], None] | None = None,
    retention: Witness | None = None,
    predictions: bool = False,
) -> Tally:
    """Play the whole stream. With `checkpoint`, start from what is saved there, and save regularly.

    `retention` gets the state after every round. With `predictions`, the tally keeps every predicted class.

    Ctrl-C finishes the current round, saves a checkpoint and raises KeyboardInterrupt.
    """
    device = federation.network.device
    state, start = federation.start(), 0
    tally = Tally(stream, federation.aggregations(len(stream)), device, predictions)
    if checkpoint is not None and checkpoint.exists():
        start, saved = load_checkpoint(checkpoint, fingerprint, device)
        state = unflatten(state, saved, checkpoint)
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
        resident = put_on_device(stream, device)
        read = partial(_read, stream, device) if resident is None else resident.read
        if not start and _foreseeable(federation, stream):
            rounds = federation.aggregations(len(stream)).tolist()
            with exact():
                foreseen = federation.aggregator.foresee(federation.server, lambda t: read(t).x, rounds)
            state = state._replace(memory=state.memory | foreseen)
        play = _player(federation, stream, tally, resident, read)
        for t in range(start, len(stream)):
            state = play(state, t)
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


def _foreseeable(federation: Federation, stream: Stream) -> bool:
    """Whether all clients send unchanged uploads in every round, and there is a GPU to compute in advance."""
    as_usual = stream.delay is None and federation.trusting
    everybody = bool((stream.domain != ABSENT).all())
    return federation.ahead and as_usual and everybody and federation.network.device.type == "cuda"


def _player(
    federation: Federation, stream: Stream, tally: Tally, resident: DeviceStream | None, read: Callable[[int], Batches]
) -> Callable[[State, int], State]:
    """Return the function that plays and records a round, with CUDA graphs where possible."""
    without_graph = partial(_next, federation, stream, tally, read)
    if federation.graphs == "always" and resident is None:
        raise UserError(
            "lift=graph needs images with one label each that fit on a CUDA GPU: use lift=vmap or lift=auto"
        )
    if federation.graphs == "never" or resident is None:
        return without_graph
    replay = RoundGraphs(federation, stream, tally, resident)

    def play(state: State, t: int) -> State:
        ready = replay.ready(state, t)
        if federation.graphs == "always":
            replay.insist()
        return replay.next(state, t) if ready else without_graph(state, t)

    return play


def _read(stream: Stream, device: torch.device, t: int) -> Batches:
    slot = stream.slot(t)
    labels, domain = (torch.from_numpy(array).to(device) for array in (slot.labels, slot.domain))
    return Batches(to_input(slot.images, device), labels, domain)


def _next(
    federation: Federation, stream: Stream, tally: Tally, read: Callable[[int], Batches], state: State, t: int
) -> State:
    """Read slot t, play it, record it. Labels and domains go to the tally (and domains to an upper bound) only."""
    if not (stream.domain[t] != ABSENT).any():
        return state
    x, labels, domain = read(t)
    device = federation.network.device
    active = domain != ABSENT
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
    tally.record(t, outcome.logits, labels, domain)
    moved = (outcome.bytes_up, outcome.bytes_down)
    if outcome.collaboration is None:
        tally.record_bytes(moved)  # newcomers can be sent a model in rounds without an aggregation too
    else:
        tally.record_collaboration(t, outcome.collaboration, domain, moved)
    return state
