"""The task of `peers.py` on this package, and as a loop of deep copies."""

from __future__ import annotations

import copy
from typing import Any

import torch

from fedctta.engine.simulation import simulate
from fedctta.runs.build import federate
from peer_ways.task import Data, Task, Tick, write_over


def play_fedctta(task: Task, data: Data, tick: Tick) -> float:
    """Our engine, reading and counting included."""

    def on_round(*_: Any) -> None:
        if data.device.type == "cuda":
            torch.cuda.synchronize()
        tick()

    tally = simulate(federate(data.experiment, data.parts), data.parts.stream, on_round=on_round)
    return 100 * tally.accuracy(data.rounds)


def play_pfllib(task: Task, data: Data, tick: Tick) -> float:
    """Client objects with a model each; the server copies its model into all, and adds theirs up one by one."""
    source = data.make_client(task.method)
    clients = [copy.deepcopy(source) for _ in range(task.clients)]
    right = 0
    for t in range(data.rounds):
        for i, client in enumerate(clients):
            client.adapt(data.batch(t, i))
        uploads = [copy.deepcopy(client.upload()) for client in clients]
        average = {name: torch.zeros_like(tensor) for name, tensor in uploads[0].items()}
        for upload in uploads:
            for name, tensor in upload.items():
                average[name] += tensor.detach() / task.clients
        for i, client in enumerate(clients):
            write_over(client, average)
            right += data.count_right(t, i, client.predict(data.batch(t, i)))
        tick()
    return data.accuracy(right)
