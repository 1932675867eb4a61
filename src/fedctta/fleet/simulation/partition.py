"""The ClientApp of a simulation on Flower's engine: every node is one client of the experiment's stream.

Any actor may serve any node, so what a client owns is kept in its `Context.state`, packed as a parcel, from message to
message; model and data are made once per process.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fedctta.core.clients import Client
from fedctta.core.tensors import named, under
from fedctta.engine.first_clients import first_client
from fedctta.engine.rounds import take_up
from fedctta.fleet.device.handover import Handover, Snapshot
from fedctta.fleet.device.request_handler import RequestHandler
from fedctta.fleet.flower import Array, ArrayRecord, ClientApp, Context, Message, RecordDict
from fedctta.fleet.transport.framing import LIMIT
from fedctta.fleet.transport.wire import Parcel, pack, unpack
from fedctta.models.inputs import read_batch
from fedctta.runs.build import Parts, choose_parts
from fedctta.runs.cache import Cache
from fedctta.runs.datasets import public_images
from fedctta.runs.settings import Experiment
from fedctta.streams import Stream

PARCEL, LOGITS, CLIENT = "parcel", "logits", "client"


def client_app(experiment: Experiment) -> ClientApp:
    """Return the app that is one client of the experiment's stream on every node."""
    app = ClientApp()
    app.query()(partial(answer, experiment))
    app.train("step")(partial(answer, experiment))
    return app


_parts: dict[str, Parts] = {}  # of this process, made at the first message


def answer(experiment: Experiment, message: Message, context: Context) -> Message:
    """Let the node's client take its download, predict the batch it holds, adapt to the next one, and upload."""
    if experiment.fingerprint not in _parts:
        _parts.clear()
        _parts[experiment.fingerprint] = choose_parts(experiment, torch.device("cpu"), Cache())
    request = unpack(message.content.array_records[PARCEL][PARCEL].numpy(), LIMIT)
    number = int(context.node_config["partition-id"])
    with torch.no_grad():
        reply, logits = _step(experiment, _parts[experiment.fingerprint], number, request, context)
    content = RecordDict({PARCEL: ArrayRecord({PARCEL: Array(pack(reply))})})
    if logits is not None:
        content[LOGITS] = ArrayRecord({f"{request.round - 1}/{number}": Array(logits.numpy())})
    return Message(content, reply_to=message)


def _step(
    experiment: Experiment, parts: Parts, number: int, request: Parcel, context: Context
) -> tuple[Parcel, Tensor | None]:
    network, adapter, stream = parts.network, parts.methods.adapter, parts.stream
    client, seen = _recall(experiment, parts, number, context)
    moment, logits = Snapshot(client, None, seen), None
    if request.kind == "step" and seen == request.round:  # not asked a second time
        if seen:
            own = under("own", {name: torch.from_numpy(array) for name, array in request.arrays.items()})
            client, x = take_up(client, own), _batch(stream, seen - 1, number)
            client = adapter.receive(network, client, x) if adapter.receives and own else client
            logits = adapter.predict(network, client, x)
        if request.note["ask"]:
            x = _batch(stream, seen, number)
            client = adapter.adapt(network, client, x)
            moment = Snapshot(client, x, seen + 1)
            _remember(moment, context)
    handler = RequestHandler(
        f"client-{number:06}", network, adapter, Handover(moment), spare=lambda: network, lockstep=True, min_batch=1
    )
    reply = handler.answer(replace(request, arrays={}))
    return replace(reply, note={**reply.note, "received": int(bool(request.arrays))}), logits


def _batch(stream: Stream, t: int, number: int) -> Tensor:
    return read_batch(stream.slot(t).images[number], "cpu")


def _recall(experiment: Experiment, parts: Parts, number: int, context: Context) -> tuple[Client, int]:
    """Return the client, and how many batches it has adapted to."""
    if CLIENT not in context.state:
        images = partial(public_images, experiment, parts.stream.data, device=parts.device)
        adapter, batch, seed = parts.methods.adapter, experiment.batch, experiment.seed
        return first_client(parts.network, adapter, images, batch, seed, number), 0
    kept = unpack(context.state.array_records[CLIENT][CLIENT].numpy(), 1 << 40)
    tensors = {name: torch.from_numpy(array) for name, array in kept.arrays.items()}
    return Client(under("own", tensors), under("private", tensors)), kept.round


def _remember(moment: Snapshot, context: Context) -> None:
    client = moment.client
    tensors = named("own", client.own) | named("private", client.private)
    kept = Parcel("upload", moment.batches, arrays={name: t.numpy() for name, t in tensors.items()})
    context.state[CLIENT] = ArrayRecord({CLIENT: Array(pack(kept))})
