"""Rounds of more clients than a device holds several times: rows of them are streamed through, and changed in place.

An ordinary round has the clients before it, adapted, and mixed, and a captured one keeps them beside an ordinary one.
For 10,000 clients that own all of ResNet-8 that would be five times 50 GB. Here some rows at a time are copied to where
a graph reads them, pass through it, and return to where they came from. The clients exist once while they adapt and
predict, and, if the server does more with their models than mix them (`Aggregator.only_mixes`), twice while it does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from fedctta.core.clients import InChunks
from fedctta.core.network import Tensors
from fedctta.engine.captured_lift import CapturedLift
from fedctta.engine.rounds import Federation, State
from fedctta.errors import UserError


def stream_rows(federation: Federation) -> Federation:
    """Return the federation with rounds that change its clients in place; one that runs by a loop stays as it is."""
    server, lift = federation.server, federation.server.lift
    if not isinstance(lift, InChunks):
        return federation
    if federation.graphs == "always":
        raise UserError("lift=graph needs memory for five times what all clients own: use lift=auto, or fewer clients")
    each = lift.each if federation.graphs == "never" else CapturedLift(lift.each, server.network.device)
    in_place = replace(lift, each=each, in_place=True)
    return replace(federation, server=replace(server, lift=in_place), graphs="never")


def keep_apart(play: Callable[[State, int], State]) -> Callable[[State, int], State]:
    """Play rounds on a state of which nothing but the clients is changed, though a server may remember what it sent."""

    def play_apart(state: State, t: int) -> State:
        places = {_place(tensor) for part in state.clients for tensor in part.values()}

        def apart(tensors: Tensors) -> Tensors:
            return {name: t.clone() if _place(t) in places else t for name, t in tensors.items()}

        return play(state._replace(memory=apart(state.memory), post=apart(state.post)), t)

    return play_apart


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
