"""The ways to do the rounds of one cell. Each calls `tick` after every round."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from fedctta.bench.balanced_client import BalancedClient
from fedctta.bench.plain_clients import GradientClient, PlainClient, StatisticsClient, TentClient
from fedctta.bench.plain_inference import Tick, floor, launched
from fedctta.bench.servers import make_signal, make_weigh
from fedctta.bench.work import Work
from fedctta.core.network import Tensors
from fedctta.engine.simulation import simulate
from fedctta.models.inputs import to_input

CLIENTS: dict[str, type[PlainClient]] = {
    "bn": StatisticsClient,
    "grad": GradientClient,
    "tent": TentClient,
    "bbn": BalancedClient,
}


def ours(work: Work, tick: Tick) -> None:
    """Way b: the engine, reading and recording included."""
    simulate(work.federation(), work.stream, on_round=lambda *_: tick())


def loop(work: Work, tick: Tick) -> None:
    """Way c: one model object a client, all on the device; tensors are stacked by name and mixed at once."""
    cell, source = work.cell, copy.deepcopy(work.source).to(work.device)
    clients = [CLIENTS[cell.adapter](source) for _ in range(cell.clients)]
    signal = make_signal(cell.aggregator, source, work.device, published=False)
    weigh = make_weigh(cell.aggregator, work.device, published=False)
    for t in range(work.rounds):
        x, labels = work.read(t)
        batches = x.contiguous().unbind()
        for client, batch in zip(clients, batches, strict=True):
            client.adapt(batch)
        weights = None
        if signal is not None:
            weights = weigh([signal(client, batch) for client, batch in zip(clients, batches, strict=True)])
        _mix(clients, weights)
        hits = [client.predict(batch).argmax(1) for client, batch in zip(clients, batches, strict=True)]
        (torch.stack(hits).cpu() == labels).float().mean(1)
        tick()


@torch.no_grad()
def _mix(clients: list[PlainClient], weights: Tensor | None) -> None:
    """Give every client its weighted average of all models, or without weights the mean."""
    uploads = [client.upload() for client in clients]
    for name in uploads[0]:
        together = torch.stack([upload[name] for upload in uploads])
        if weights is None:
            mixed = together.mean(0).expand_as(together)
        else:
            mixed = (weights @ together.flatten(1)).view_as(together)
        for upload, new in zip(uploads, mixed, strict=True):
            upload[name].copy_(new)


def published(work: Work, tick: Tick) -> None:
    """Way d: models live on the CPU, visit the device for every step, and are averaged by loops over state dicts."""
    cell, device = work.cell, work.device
    clients = [CLIENTS[cell.adapter](work.source, published=True) for _ in range(cell.clients)]
    signal = make_signal(cell.aggregator, work.source, device, published=True)
    weigh = make_weigh(cell.aggregator, device, published=True)
    for t in range(work.rounds):
        slot = work.stream.slot(t)
        states, signals = [], []
        for client, images in zip(clients, slot.images, strict=True):
            x = to_input(images).contiguous().to(device)
            client.model.to(device)
            client.adapt(x)
            if signal is not None:
                signals.append(signal(client, x).cpu())
            client.model.cpu()
            states.append(copy.deepcopy(client.upload()))
        if signal is None:
            averages = [average(states, [1 / len(states)] * len(states))] * len(states)
        else:
            averages = [average(states, row) for row in weigh(signals).tolist()]
        for client, state, images, labels in zip(clients, averages, slot.images, slot.labels, strict=True):
            client.model.load_state_dict(copy.deepcopy(state), strict=False)
            client.model.to(device)
            predicted = client.predict(to_input(images).contiguous().to(device)).argmax(1).cpu()
            (predicted == torch.from_numpy(labels)).float().mean().item()
            client.model.cpu()
        tick()


def average(states: list[Tensors], row: list[float]) -> Tensors:
    """Sum state dicts, each counted by its weight, tensor by tensor and client by client."""
    total = {}
    for name in states[0]:
        total[name] = torch.zeros_like(states[0][name])
        for weight, state in zip(row, states, strict=True):
            total[name] += weight * state[name]
    return total


WAYS: dict[str, Callable[[Work, Tick], None]] = {"a": floor, "a'": launched, "b": ours, "c": loop, "d": published}
