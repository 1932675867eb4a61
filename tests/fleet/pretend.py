"""Devices within the test's own process, in lock-step, and the simulator's answers to compare with."""

from __future__ import annotations

import json

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from fedctta.aggregators import aggregators
from fedctta.aggregators.common.mixing import matrix
from fedctta.fleet.agreement import terms_of
from fedctta.fleet.server.examine import form_of
from fedctta.fleet.server.plan import write_plan
from fedctta.fleet.transport import wire
from fedctta.models.inputs import to_input
from fedctta.runs.build import choose_parts, federate
from fedctta.runs.cache import Cache
from fedctta.runs.settings import single
from fedctta.streams import ABSENT

RUN = {"dataset": "shapes-c", "clients": 4, "slots": 2}


class Device:
    """A device whose batches are those of one client of a stream; `spoil` may change what it sends."""

    def __init__(self, name, federation, client, batches, spoil=None):
        self.name, self.network, self.adapter, self.client = name, federation.network, federation.adapter, client
        self.batches, self.next, self.held, self.predictions = batches, 0, None, []
        self.applied, self.spoil, self.sent = -1, spoil, None

    def __call__(self, message):
        request = wire.unpack(message.content.array_records["parcel"]["parcel"].numpy(), 1 << 30)
        with torch.no_grad():
            reply = self.hello() if message.metadata.message_type == "query" else self.step(request)
        if self.spoil is not None:
            reply = self.spoil(reply)
        flat = reply if isinstance(reply, np.ndarray) else wire.pack(reply)
        return Message(RecordDict({"parcel": ArrayRecord({"parcel": Array(flat)})}), reply_to=message)

    def hello(self):
        forms = {name: form_of(tensor) for name, tensor in self.client.own.items()}
        return wire.Parcel("hello", 0, {"device": self.name, **self.terms(), "tensors": json.dumps(forms)})

    def terms(self):
        return terms_of(self.network, self.adapter)

    def step(self, request):
        note = request.note
        if self.sent is not None and self.sent.round == request.round and note["ask"]:  # the server asks once more
            return self.again(note)
        if note.get("download", -1) > self.applied:
            self.applied = note["download"]
            own = {name.removeprefix("own."): torch.from_numpy(array) for name, array in request.arrays.items()}
            self.client = self.client._replace(own={**self.client.own, **own})
        if self.held is not None:
            self.predictions.append(self.adapter.predict(self.network, self.client, self.held).argmax(1))
            self.held = None
        if not note["ask"] or self.next >= len(self.batches):
            note = {"device": self.name, "received": 1, "reason": "no more data"}
            return wire.Parcel("nothing", request.round, note)
        self.held = self.batches[self.next]
        self.next += 1
        self.client = self.adapter.adapt(self.network, self.client, self.held)
        aggregator = aggregators.create(note["aggregator"], json.loads(note["parameters"]))
        signals = aggregator.signal(self.network, self.client, self.held)
        arrays = {f"own.{n}": t.numpy() for n, t in aggregator.shares(self.network, self.client.own).items()}
        arrays |= {f"signal.{n}": t.numpy() for n, t in signals.items()}
        self.sent = wire.Parcel("upload", request.round, {"device": self.name, **self.terms()}, arrays)
        return self.again(note)

    def again(self, note):
        return wire.Parcel("upload", self.sent.round, {**self.sent.note, "nonce": note["nonce"]}, self.sent.arrays)


def assemble(**values):
    """The simulator's parts for these words."""
    experiment = single({**RUN, **values})
    parts = choose_parts(experiment, torch.device("cpu"), Cache())
    return federate(experiment, parts), parts.stream


def make_devices(federation, stream, rounds, spoil=None):
    """One device a client of the stream, as nodes 100, 101, ... in another order than their names."""
    start = federation.start().clients
    slots = [to_input(stream.slot(t).images, federation.network.device) for t in range(rounds)]
    devices = {}
    for k in range(stream.clients):
        client = type(start)(*({n: t[k] for n, t in part.items()} for part in start))
        how = spoil.get(k) if spoil else None
        devices[103 - k] = Device(f"device-{k}", federation, client, [slot[k] for slot in slots], how)
    return devices


def simulated(federation, stream, rounds):
    """Predictions [rounds][clients, B] and W [rounds] of the simulator."""
    state, predictions, weights = federation.start(), [], []
    with torch.no_grad():
        for t in range(rounds):
            slot = stream.slot(t)
            active = torch.from_numpy(slot.domain) != ABSENT
            state, outcome = federation.play(state, t, to_input(slot.images, federation.network.device), active, None)
            predictions.append(outcome.logits.argmax(-1))
            weights.append(matrix(outcome.weights))
    return predictions, weights


def context_of(folder, fleet, **run):
    """Write a plan and return the context of a run with it."""
    path = folder / "fleet.toml"
    usual = {
        "state": "server",
        "max_devices": 4,
        "devices": 4,
        "lockstep": True,
        "deadline": 5.0,
        "poll": 0.001,
        "retry": 0.0,  # who has nothing is asked again with all others, however slow the machine is
    }
    path.write_text(write_plan({**usual, "patience": 5.0, **fleet}, {**RUN, **run}))
    return Context(1, 0, {}, RecordDict(), {"plan": str(path)})


__all__ = ["Device", "assemble", "context_of", "make_devices", "simulated"]
