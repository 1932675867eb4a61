"""One client of a simulated stream as a device's source: for try-outs, and to compare a fleet with a simulation.

`stream:dataset=shapes-c,clients=4,client=0,slots=2` takes the words of `fedctta run`, and which client it is. Labels
go into the predictions, for scoring, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedctta.data.domains import UNLABELLED
from fedctta.errors import UserError
from fedctta.fleet.device.sources import Batch
from fedctta.runs.build import choose_methods, choose_stream
from fedctta.runs.cache import Cache
from fedctta.runs.settings import Experiment, parse_single, single
from fedctta.streams import ABSENT, Stream

LAYOUT = (
    *("dataset", "severity", "domains", "folder", "layout", "size", "model", "weights", "source_images"),
    *("stream", "samples", "order", "clients", "slots", "batch", "seed"),
)
"""Keys of an experiment that its data follow from."""


def parse_stream(words: str, batch: int) -> tuple[Experiment, int]:
    """Read the words of a stream: the experiment, and the client's number.

    >>> parse_stream("dataset=shapes-c,clients=4,client=2", 10)[1]
    2
    """
    values = parse_single(words.split(","), "a device")
    client = values.pop("client", "0")
    if not client.isdecimal():
        raise UserError(f"client={client} is not a number: write for example client=0")
    experiment = single({"batch": batch, **values})
    for key in values:
        name, dot, _ = key.partition(".")
        if name not in ((experiment.stream, experiment.samples) if dot else LAYOUT):
            raise UserError(
                f"{key} has no effect in --data stream:, which says what images there are: drop it there; --adapter and"
                " words METHOD.PARAMETER=VALUE say what the device does with them"
            )
    return experiment, int(client)


def open_stream(experiment: Experiment) -> Stream:
    """Lay out the stream just as a simulation of this experiment does."""
    return choose_stream(experiment, choose_methods(experiment), Cache().data(experiment))


def one_client(words: str, batch: int, done: int) -> Iterator[Batch]:
    """Yield a client's batches, without the first `done` images."""
    experiment, client = parse_stream(words, batch)
    stream = open_stream(experiment)
    if stream.data.dense:
        raise UserError(
            f"{experiment.dataset} has a class for every pixel and a device writes one an image: use shapes-c"
        )
    if client >= stream.clients:
        raise UserError(f"client={client} is not one of the stream's {stream.clients}: use 0 to {stream.clients - 1}")
    return _walk(stream, client, done)


def _walk(stream: Stream, client: int, done: int) -> Iterator[Batch]:
    slots = np.flatnonzero(stream.domain[:, client] != ABSENT)
    size = stream.batch
    for t in slots[done // size :]:
        slot = stream.slot(int(t))
        row = int((slot.domain[:client] != ABSENT).sum())
        over = done % size if t == slots[min(done // size, len(slots) - 1)] else 0
        names = tuple(f"{t}/{k}" for k in range(over, size))
        labels = slot.labels[row, over:]
        known = tuple(None if label == UNLABELLED else int(label) for label in labels)
        yield Batch(slot.images[row, over:], names, known)
