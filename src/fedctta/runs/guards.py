"""What an experiment asks for against liars and for privacy, put into a federation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from fedctta.adapters import Adapter, adapters
from fedctta.aggregators import Aggregator, aggregators
from fedctta.aggregators.local import Local
from fedctta.core.network import Network
from fedctta.engine.rounds import Federation
from fedctta.errors import UserError, either
from fedctta.runs.settings import Experiment
from fedctta.uploads.attacks import Liars, choose_liars, has_effect
from fedctta.uploads.privacy import Noise, noise_for, spent_in_all
from fedctta.uploads.robust import Robust
from fedctta.uploads.stages import Stage
from fedctta.uploads.traffic import on_the_wire, signals_of


def guard(federation: Federation, experiment: Experiment) -> Federation:
    """Return the federation with robust mixing, liars, noise and the least batch, as the experiment asks."""
    if shares_nothing(experiment, federation.aggregator):
        federation = replace(federation, aggregator=Local())
    robust = Robust(experiment.robust, experiment.cap, experiment.clip, experiment.trim)
    robust.check(federation.aggregator, federation.adapter.measures)
    noise: tuple[Stage, ...] = ()
    liars: tuple[Stage, ...] = ()
    if experiment.liars:
        who = choose_liars(federation.server.clients, experiment.liars, experiment.seed)
        liars = (Liars(who, experiment.lie, experiment.seed, experiment.lie_until),)
        check_lie(experiment, federation)
    elif experiment.lie_until is not None:
        raise UserError(f"lie_until={experiment.lie_until} has no effect without liars: say liars=2, or leave it out")
    if (experiment.noise, experiment.epsilon) != (None, None) and federation.aggregator.communicates:
        if (quiet := share_noisily(experiment, federation)) is not None:
            federation = quiet
        else:
            noise = (choose_noise(experiment, federation),)
    if not liars and not noise and robust.way == "none":
        return federation
    if federation.graphs == "always":
        raise UserError("lift=graph cannot replay rounds with robust, liars or noise: use lift=auto")
    stages = (*noise, *liars, *federation.stages)
    return replace(federation, graphs="never", stages=stages, robust=robust)


def shares_nothing(experiment: Experiment, aggregator: Aggregator) -> bool:
    """Whether all batches are too small to share what is learnt from them."""
    return experiment.batch < experiment.min_batch and aggregator.communicates


def check_lie(experiment: Experiment, federation: Federation) -> None:
    """Refuse a lie that would change nothing that is uploaded."""
    network, adapter, aggregator = federation.network, federation.adapter, federation.aggregator
    client = adapter.init(network)
    signals = signals_of(network, client, aggregator, federation.server.shape)
    if aggregator.communicates and not has_effect(experiment.lie, aggregator.shares(network, client.own), signals):
        raise UserError(
            f"lie={experiment.lie} has no effect on {aggregator.name} with adapter={adapter.name}, whose clients send"
            " nothing that it changes: use another lie"
        )


def describe_guards(federation: Federation, experiment: Experiment, rounds: int) -> dict[str, Any]:
    """Return what a record says of them: who lies, and what privacy `rounds` rounds leave."""
    told: dict[str, Any] = {}
    for stage in reversed(federation.stages):
        if isinstance(stage, Liars):
            told["lying"] = list(stage.who)
        if isinstance(stage, Noise):
            told["privacy"] = stage.spent(experiment.delta, len(federation.aggregations(rounds)))
    if federation.adapter.sends_noise is not None:
        told["privacy"] = spent_in_all(federation.adapter.sends_noise, experiment.delta)
    return told


def share_noisily(experiment: Experiment, federation: Federation) -> Federation | None:
    """Return a federation whose clients add noise themselves to all that they send; None if their method cannot."""
    aggregator = federation.aggregator
    if aggregator.partner != federation.adapter.name:
        return None
    adapter = federation.adapter.with_noise(read_noise(experiment), aggregator.least_images)
    if adapter is None:
        return None
    adapter.check_images(federation.network, torch.zeros(1, *federation.server.shape, device=federation.network.device))
    if experiment.guard != "off":
        raise UserError(
            f"guard={experiment.guard} lets images decide whether a client sends anything, which noise does not cover:"
            " drop the guard, or the noise"
        )
    if federation.graphs == "always":
        raise UserError("lift=graph cannot replay rounds with robust, liars or noise: use lift=auto")
    return replace(federation, adapter=adapter, graphs="never")


def read_noise(experiment: Experiment) -> float:
    """Return the noise asked for, or that of the budget."""
    if experiment.noise is not None:
        return experiment.noise
    assert experiment.epsilon is not None
    return noise_for(experiment.epsilon, experiment.delta)


def choose_noise(experiment: Experiment, federation: Federation) -> Noise:
    """Return the noise asked for; refuse uploads that it would not cover."""
    adapter, aggregator, network = federation.adapter, federation.aggregator, federation.network
    if not covers(network, adapter):
        able = [name for name, usual in adapters.usual().items() if covers(network, usual)]
        raise UserError(
            f"noise and epsilon cover the statistics of one batch only: use adapter={either(able)} (with default"
            " parameters) or drop them"
        )
    shape = federation.server.shape
    if signals := signals_of(network, adapter.init(network), aggregator, shape):
        silent = [
            name
            for name, usual in aggregators.usual().items()
            if _fits(network, adapter, usual) and not on_the_wire(network, adapter, usual, shape).signals
        ]
        raise UserError(
            f"noise and epsilon do not cover the {' and '.join(signals)} that {aggregator.name} asks for: use an"
            f" aggregator without signals, say {either(silent)}"
        )
    return Noise(read_noise(experiment))


def covers(network: Network, adapter: Adapter) -> bool:
    """Whether clients upload statistics of one batch and nothing else."""
    return adapter.measures and adapter.init(network).own.keys() <= network.statistics.keys()


def _fits(network: Network, adapter: Adapter, aggregator: Aggregator) -> bool:
    """Whether a real server could aggregate what this adapter's clients own."""
    if aggregator.upper_bound or not aggregator.communicates:
        return False
    try:
        aggregator.require_partner(adapter.name, adapter.init(network).own)
        aggregator.check(network, adapter.init(network).own)
    except UserError:
        return False
    return True
