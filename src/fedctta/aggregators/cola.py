"""CoLA's server: it collects the domain vectors that clients store, and gives all of them to everyone.

In the paper devices hand their vectors to each other at an exchange; the server is what they have in common. It keeps
as many as a client has places for, the most recent ones. A client's vectors are numbered: one that was taken before is
not taken again, even if it has had to make room. So an upload may be lost, late or repeated. A client sends all its
vectors that the server has not confirmed, and the weights of this moment, if it offers them.

No model is mixed: W is the identity. Of equally recent vectors those of the first clients come first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedctta.aggregators import Aggregator, Server, Uploads
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.core.randomness import name_of
from fedctta.core.tensors import lay_out, named, only, under

LEAST_VARIANCE = 1e-8  # whoever sends less is not believed
ROWS = ("vectors", "mean", "var", "name")  # what is known of a vector, as clients receive it


@dataclass(frozen=True)
class CoLA(Aggregator):
    """Collect the domain vectors of all clients and give everyone the most recent ones."""

    name: ClassVar[str] = "cola"
    title: ClassVar[str] = "CoLA"
    cumulative: ClassVar[bool] = True
    partner: ClassVar[str] = "cola"

    def shares(self, network: Network, own: Tensors) -> Tensors:
        """Nothing of a model is sent; vectors are signals."""
        return {}

    def hands(self, private: Tensors) -> Tensors:
        """Replace the set of shared vectors, and tell a client which of its own are in it."""
        return {name: private[name] for name in private if name.startswith("shared.") or name == "taken"}

    def mixes(self, measured: bool) -> bool:
        """Clients receive what the server remembers."""
        return False

    def signal(self, network: Network, client: Client, x: Tensor) -> Tensors:
        """Return the vectors that a client has stored, and one more with the weights of this moment, if offered."""
        private = client.private
        if "offered" not in private:
            return {}
        own = {name: tensor for name, tensor in client.own.items() if name in network.affine}
        now = {
            "vectors": lay_out(own) - lay_out(only(own, network.state)),
            **under("stay", only(("stay.mean", "stay.var"), private)),
            "serial": private["offered"],
        }
        rows = {name: torch.cat([private[f"kept.{name}"], tensor[None]]) for name, tensor in now.items()}
        age = private["batches"] - rows["serial"] // 2  # in batches: numbers grow by 2 per batch
        return {**rows, "name": name_of(private["key"], rows["serial"]), "age": age}

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Tensor, Tensors]:
        """Take new vectors into the set; mix nothing."""
        if uploads.signals:
            memory = collect(memory or empty_set(uploads.signals), uploads.signals, uploads.active)
        return torch.eye(len(uploads.active), device=uploads.active.device), memory

    def step(
        self, server: Server, uploads: Uploads, mixed: Tensors, receive: Tensor, memory: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Give everyone the whole set."""
        if not memory:
            return mixed, memory
        everyone = {name: memory[name].expand(len(receive), *memory[name].shape) for name in ROWS}
        return {**mixed, **named("shared", everyone), "taken": memory["taken"]}, memory


def empty_set(signals: Tensors) -> Tensors:
    """Return a set without vectors, of as many places as a client has."""
    rows = signals["serial"].shape[1]
    places = {name: torch.zeros_like(signals[name][0, : rows - 1]) for name in ROWS}
    return {
        **places,
        "var": torch.ones_like(places["var"]),
        "when": torch.full((rows - 1,), -torch.inf, dtype=torch.float64, device=signals["serial"].device),
        "taken": torch.zeros_like(signals["serial"][:, 0]),
        "exchanges": torch.zeros_like(signals["serial"][0, 0]),
    }


def collect(memory: Tensors, signals: Tensors, active: Tensor) -> Tensors:
    """Return the set with the vectors of active clients that it has never had; the least recent make room.

    A vector stored a batches before exchange e counts as of the time e - a / (a + 1).
    """
    exchange = memory["exchanges"] + 1
    new = (signals["serial"] > memory["taken"][:, None]) & active[:, None]
    age = signals["age"].clamp_min(0).double()
    when = torch.where(new, exchange - age / (age + 1), -torch.inf).flatten()
    known, chosen = torch.cat([memory["when"], when]).sort(descending=True, stable=True)
    places = len(memory["when"])
    known, chosen = known[:places], chosen[:places]
    candidates = {name: torch.cat([memory[name], signals[name].flatten(0, 1)]) for name in ROWS}
    kept = {name: rows.index_select(0, chosen) for name, rows in candidates.items()}
    return {
        **kept,
        "var": kept["var"].clamp_min(LEAST_VARIANCE),
        "name": torch.where(known.isfinite(), kept["name"], 0),
        "when": known,
        "taken": torch.where(new, signals["serial"], 0).amax(1).maximum(memory["taken"]),
        "exchanges": exchange,
    }
