"""The server's half of a round as one pure function, the same in a simulation and in a fleet.

    W = limit(restrict(collaborate(uploads), receive, trust))        models = step(mix(W, contribute(uploads)))

The uploads have passed all stages (see `stages`) except robustness, which comes first here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedctta.aggregators import Aggregator, Server, Uploads
from fedctta.aggregators.common.mixing import Mixing, Weights, restrict
from fedctta.core.network import Tensors
from fedctta.core.tensors import choose_rows
from fedctta.errors import UserError
from fedctta.machine import exact
from fedctta.uploads.robust import Robust
from fedctta.uploads.stages import Transit

Mixer = Callable[[Mixing, Tensors], Tensors]


class Served(NamedTuple):
    """The clients' models after the round, the server's memory, W, and which clients receive."""

    received: Tensors
    memory: Tensors
    mixing: Mixing
    receive: Tensor


def serve(
    server: Server,
    aggregator: Aggregator,
    robust: Robust,
    transit: Transit,
    held: Tensors,
    memory: Tensors,
    mixer: Mixer | None = None,
) -> Served:
    """Aggregate the uploads; clients that do not receive keep their rows of `held`.

    `mixer` mixes in another way, where all receive and nothing guards the mixing.
    """
    transit = robust.handle(server, transit)
    uploads, receive = transit.uploads, transit.receive
    before = memory
    with exact():
        mixing, memory = _collaborate(server, aggregator, uploads, memory)
        mixing = robust.limit(restrict(mixing, receive, uploads.trust))
        give = partial(aggregator.contribute, active=uploads.active, memory=memory)
        given = give(uploads.own)
        if mixer is None:
            mixed = robust.mix(mixing, given, given if transit.sent is None else give(transit.sent))
        else:
            mixed = mixer(mixing, given)
        received, memory = aggregator.step(server, uploads, mixed, receive, memory)
    if uploads.trust is not None and not uploads.active.any():  # nothing has arrived: the memory stays
        memory = before
    # Rows of clients that do not receive may hold older uploads; W does not keep private tensors of absent clients.
    received = {
        name: new if name in mixed and receive is transit.active else choose_rows(receive, new, held[name])
        for name, new in received.items()
    }
    return Served(received, memory, mixing, receive)


def _collaborate(server: Server, aggregator: Aggregator, uploads: Uploads, memory: Tensors) -> tuple[Mixing, Tensors]:
    """Return what the method does; a mistake in a method of the user's is one line."""
    answer: Any = aggregator.collaborate(server, uploads, memory)
    clients = len(uploads.active)
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Mapping)):
        raise UserError(
            f"collaborate of {aggregator.name} must return two things: W[{clients}, {clients}] and the memory"
        )
    mixing: Any = answer[0]
    types = {tensor.dtype for tensor in uploads.own.values()}
    if not isinstance(mixing, Weights | Mapping):
        found = f"a {type(mixing).__name__}"
    elif isinstance(mixing, Tensor) and mixing.shape != (clients, clients):
        found = f"W{list(mixing.shape)}"
    elif isinstance(mixing, Tensor) and mixing.dtype == torch.float64 and torch.float64 not in types:
        found = "W in float64"
    else:
        return answer
    raise UserError(
        f"collaborate of {aggregator.name} returned {found}: return W[{clients}, {clients}], a tensor in float32"
    )
