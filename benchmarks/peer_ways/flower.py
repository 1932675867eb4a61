"""The task of `peers.py` on Flower's simulation engine."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedctta.bench.plain_clients import PlainClient, TentClient
from peer_ways.task import Data, Task, Tick, write_over


def play_flower(task: Task, data: Data, tick: Tick) -> float:
    """Flower's simulation engine: a message to and from every client per round, an actor per core.

    A message brings the new average; the client predicts the batch before with it and adapts to the next one. Actors
    keep data and one model; what a client keeps (Tent's moments) is in its Flower context.
    """
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

    from fedctta.fleet.flower import run_simulation

    client_app, server_app = ClientApp(), ServerApp()
    counts = {"right": 0}
    rounds, clients, device = data.rounds, task.clients, data.device.type

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        client, here = _actor(task)
        t, i = int(message.content["at"]["t"]), int(context.node_config["partition-id"])
        arrays = message.content["average"].to_numpy_ndarrays()
        names = list(client.upload())
        write_over(
            client, {name: torch.from_numpy(array).to(device) for name, array in zip(names, arrays, strict=True)}
        )
        right = here.count_right(t - 1, i, client.predict(here.batch(t - 1, i))) if t > 0 else 0
        if t < rounds:
            _load_moments(client, context)
            client.adapt(here.batch(t, i))
            _keep_moments(client, context)
        sent = [tensor.detach().cpu().numpy() for tensor in client.upload().values()]
        content = RecordDict({"sent": ArrayRecord(sent), "counts": MetricRecord({"right": right})})
        return Message(content=content, reply_to=message)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        while len(nodes := list(grid.get_node_ids())) < clients:
            pass
        average = [tensor.detach().cpu().numpy() for tensor in data.make_client(task.method).upload().values()]
        for t in range(rounds + 1):
            content = RecordDict({"average": ArrayRecord(average), "at": ConfigRecord({"t": t})})
            replies = list(
                grid.send_and_receive([Message(content, dst_node_id=n, message_type="train") for n in nodes])
            )
            assert len(replies) == clients, [reply.error for reply in replies if reply.has_error()]
            counts["right"] += sum(int(reply.content["counts"]["right"]) for reply in replies)
            sent = [reply.content["sent"].to_numpy_ndarrays() for reply in replies]
            average = [np.mean(each, axis=0) for each in zip(*sent, strict=True)]
            tick()

    logging.getLogger("flwr").setLevel(logging.ERROR)
    ray = {"num_cpus": task.cores, "include_dashboard": False, "logging_level": logging.ERROR, "log_to_driver": False}
    each = {"num_cpus": 1, "num_gpus": 1 / task.cores if device == "cuda" else 0.0}
    run_simulation(server_app, client_app, clients, backend_config={"client_resources": each, "init_args": ray})
    return data.accuracy(counts["right"])


def _actor(task: Task) -> tuple[PlainClient, Data]:
    """Return what an actor's process keeps: a model, and the data."""
    import fedctta

    if not hasattr(fedctta, "_peer"):
        torch.set_num_threads(1)
        data = Data(task)
        fedctta._peer = data.make_client(task.method), data  # type: ignore[attr-defined]
    return fedctta._peer  # type: ignore[attr-defined, no-any-return]


def _moments(client: PlainClient) -> Iterator[tuple[Tensor, str]]:
    for tensor in client.optimiser.param_groups[0]["params"]:  # type: ignore[attr-defined]
        yield from ((tensor, kind) for kind in ("exp_avg", "exp_avg_sq", "step"))


def _load_moments(client: PlainClient, context: Any) -> None:
    if not isinstance(client, TentClient):
        return
    client.optimiser.state.clear()
    if "moments" in context.state:
        for (tensor, kind), array in zip(_moments(client), context.state["moments"].to_numpy_ndarrays(), strict=True):
            client.optimiser.state[tensor][kind] = torch.from_numpy(array.copy()).to(
                tensor.device if kind != "step" else "cpu"
            )


def _keep_moments(client: PlainClient, context: Any) -> None:
    if isinstance(client, TentClient):
        from flwr.app import ArrayRecord

        state = client.optimiser.state
        context.state["moments"] = ArrayRecord([state[tensor][kind].cpu().numpy() for tensor, kind in _moments(client)])
