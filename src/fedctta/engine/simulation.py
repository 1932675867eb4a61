"""A whole stream, round by round: read, play, record, and save checkpoints.

An interrupted run continues to the same numbers as an unbroken one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from fedctta.engine.captured_lift import CapturedLift
from fedctta.engine.checkpoint import postponed_interrupt
from fedctta.engine.cuda_graphs import RoundGraphs
from fedctta.engine.device_stream import Batches, DeviceStream, put_on_device
from fedctta.engine.gpu_capacity import are_too_many
from fedctta.engine.health import HealthWatch
from fedctta.engine.rounds import Federation, Outcome, State
from fedctta.engine.saving import Saver, Witness
from fedctta.engine.streamed_rows import keep_apart, stream_rows
from fedctta.engine.tally import Tally
from fedctta.errors import UserError
from fedctta.machine import exact, total_memory
from fedctta.models.inputs import read_batch
from fedctta.streams import ABSENT, Stream


def simulate(
    federation: Federation,
    stream: Stream,
    *,
    checkpoint: Path | None = None,
    fingerprint: str = "",
    save_every: float = 60.0,
    on_round: Callable[[int, Tally], None] | None = None,
    retention: Witness | None = None,
    health: HealthWatch | None = None,
    predictions: bool = False,
) -> Tally:
    """Play the whole stream. With `checkpoint`, start from what is saved there, and save regularly.

    `retention` gets the state after every round. `health` plays the rounds and watches the clients. With
    `predictions`, the tally keeps every predicted class.

    Ctrl-C finishes the current round, saves a checkpoint and raises KeyboardInterrupt.
    """
    device = federation.network.device
    tally = Tally(stream, federation.aggregations(len(stream)), device, predictions)
    witnesses = [each for each in (retention, health) if each is not None]
    saver = Saver(checkpoint, fingerprint, tally, witnesses, save_every)
    state, start = saver.restore(federation.start(), device)
    with torch.no_grad(), postponed_interrupt() as interrupt:
        resident = put_on_device(stream, device)
        read = partial(_read, stream, device) if resident is None else resident.read
        if not start and _foreseeable(federation, stream):
            state = _foresee(federation, stream, read, state)
        streamed = health is None and are_too_many(state.clients, total_memory(device))
        play = _player(stream_rows(federation) if streamed else federation, stream, tally, resident, read, health)
        play = keep_apart(play) if streamed else play
        for t in range(start, len(stream)):
            state = play(state, t)
            if retention is not None:
                with saver.paused():
                    retention.measure(federation, state, t)
            if on_round is not None:
                on_round(t, tally)
            if interrupt.asked:
                saver.save(state, t + 1)
                raise KeyboardInterrupt
            saver.save_if_due(state, t + 1)
        tally.accuracy(len(stream))  # waits for the device
    saver.count()
    return tally


def _foreseeable(federation: Federation, stream: Stream) -> bool:
    """Whether all clients send unchanged uploads in every round, and there is a GPU to compute in advance."""
    as_usual = stream.delay is None and federation.trusting
    everybody = bool((stream.domain != ABSENT).all())
    return federation.ahead and as_usual and everybody and federation.network.device.type == "cuda"


def _foresee(federation: Federation, stream: Stream, read: Callable[[int], Batches], state: State) -> State:
    """Return the state with what the server can compute in advance."""
    rounds = federation.aggregations(len(stream)).tolist()
    with exact():
        foreseen = federation.aggregator.foresee(federation.server, lambda t: read(t).x, rounds)
    return state._replace(memory=state.memory | foreseen)


def _player(
    federation: Federation,
    stream: Stream,
    tally: Tally,
    resident: DeviceStream | None,
    read: Callable[[int], Batches],
    health: HealthWatch | None,
) -> Callable[[State, int], State]:
    """Return the function that plays and records a round, with CUDA graphs where possible."""
    next_by = partial(_next, federation, stream, tally, read)
    without_graph = partial(next_by, federation.play if health is None else health.play)
    if federation.graphs == "always" and resident is None:
        raise UserError(
            "lift=graph needs images with one label each that fit on a CUDA GPU: use lift=vmap or lift=auto"
        )
    if federation.graphs == "never" or resident is None:
        return without_graph
    replay = RoundGraphs(federation, stream, tally, resident)
    server = federation.server
    by_parts = replace(federation, server=replace(server, lift=CapturedLift(server.lift, server.network.device)))
    in_parts = without_graph if health is not None else partial(next_by, by_parts.play)

    def play(state: State, t: int) -> State:
        ready = replay.ready(state, t)
        if federation.graphs == "always":
            replay.insist()
        if ready:
            return replay.next(state, t)
        return (in_parts if replay.serves(t) is None else without_graph)(state, t)

    return play


def _read(stream: Stream, device: torch.device, t: int) -> Batches:
    slot = stream.slot(t)
    labels, domain = (torch.from_numpy(array).to(device) for array in (slot.labels, slot.domain))
    return Batches(read_batch(slot.images, device), labels, domain)


def _next(
    federation: Federation,
    stream: Stream,
    tally: Tally,
    read: Callable[[int], Batches],
    play: Callable[..., tuple[State, Outcome]],
    state: State,
    t: int,
) -> State:
    """Read slot t, play it, record it. Labels and domains go to the tally (and domains to an upper bound) only."""
    if not (stream.domain[t] != ABSENT).any():
        return state
    x, labels, domain = read(t)
    device = federation.network.device
    active = domain != ABSENT
    came = stream.joined(t)
    state, outcome = play(
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
    if outcome.weights is None:
        tally.record_bytes(moved)  # newcomers can be sent a model in rounds without an aggregation too
    else:
        tally.record_collaboration(t, outcome.weights, domain, moved)
    return state
