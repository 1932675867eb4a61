"""One client of a stream on a node: it keeps what it owns between messages, and asked twice it adapts once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Context, RecordDict

from fedctta.fleet.simulation.grid import InProcessGrid
from fedctta.fleet.simulation.partition import LOGITS, PARCEL, answer
from fedctta.fleet.transport.wire import Parcel, pack, unpack
from fedctta.models.inputs import to_input
from fedctta.runs.build import choose_parts
from fedctta.runs.cache import Cache
from fedctta.runs.settings import single

WORDS = {"dataset": "shapes-c", "clients": 3, "slots": 1, "batch": 5, "domains": "fog+contrast", "niid.clusters": 2}
NUMBER = 1


@pytest.fixture
def ask():
    """Ask client 1 of the stream; return its reply and its logits."""
    experiment = single({**WORDS, "adapter": "bn", "aggregator": "fedavg"})
    context = Context(1, 7, {"partition-id": NUMBER, "num-partitions": 3}, RecordDict(), {})
    grid = InProcessGrid({7: lambda message: answer(experiment, message, context)})

    def ask(number, arrays=None, more=1):
        request = Parcel("step", number, {"ask": more, "lockstep": 1}, arrays or {})
        content = RecordDict({PARCEL: ArrayRecord({PARCEL: Array(pack(request))})})
        (reply,) = grid.send_and_receive([grid.create_message(content, "train.step", 7, "1")])
        assert not reply.has_error(), reply.error
        logits = [array.numpy() for array in reply.content.array_records.get(LOGITS, {}).values()]
        return unpack(reply.content.array_records[PARCEL][PARCEL].numpy(), 1 << 30), logits

    ask.parts = choose_parts(experiment, torch.device("cpu"), Cache())
    return ask


def own(reply):
    return {name: array for name, array in reply.arrays.items() if name.startswith("own.")}


def test_it_adapts_then_predicts_with_what_it_is_sent(ask):
    parts, (first, nothing) = ask.parts, ask(0)
    network, adapter = parts.network, parts.methods.adapter
    x = to_input(parts.stream.slot(0).images[NUMBER], "cpu")
    adapted = adapter.adapt(network, adapter.init(network), x)
    assert nothing == []
    assert own(first).keys() == {f"own.{name}" for name in adapted.own}
    for name, tensor in adapted.own.items():
        np.testing.assert_allclose(first.arrays[f"own.{name}"], tensor.numpy(), rtol=1e-5, atol=1e-6)

    sent = {name: array + np.float32(0.1) for name, array in own(first).items()}
    _, (logits,) = ask(1, sent)
    client = adapted._replace(own={name: torch.from_numpy(sent[f"own.{name}"]) for name in adapted.own})
    np.testing.assert_allclose(logits, adapter.predict(network, client, x).detach().numpy(), rtol=1e-4, atol=1e-4)


def test_asked_a_second_time_it_does_not_adapt_again(ask):
    first, _ = ask(0)
    again, logits = ask(0)
    assert (again.kind, again.arrays, logits) == ("nothing", {}, [])
    second, (logits,) = ask(1, own(first))
    assert logits.shape == (5, 10)
    assert second.note["batches"] == 2
    third, (logits,) = ask(2, own(second), more=0)
    assert (third.kind, third.note["received"]) == ("nothing", 1)
    assert logits.shape == (5, 10)
