"""What a method puts on the wire: which tensors, and how many bytes, read off the code that sends them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fedctta.adapters import Adapter, adapters
from fedctta.aggregators import Aggregator, aggregators
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.errors import UserError

ALL_KINDS = ("statistics", "scales", "head", "weights")


class Wire(NamedTuple):
    """What one client sends and receives in one round: kinds of tensors, signals by name, bytes."""

    kinds: tuple[str, ...]
    signals: tuple[str, ...]
    bytes_model: int
    bytes_signals: int


def kind_of(network: Network, name: str) -> str:
    """Return what a tensor of the model is.

    Statistics of BatchNorm (means over the client's images), scales and shifts of normalisation layers, the head (the
    last linear layer), or other weights.
    """
    if name in network.statistics:
        return "statistics"
    if name in network.affine:
        return "scales"
    return "head" if network.classifier and name.rpartition(".")[0] == network.classifier else "weights"


def on_the_wire(network: Network, adapter: Adapter, aggregator: Aggregator, shape: tuple[int, ...]) -> Wire:
    """Return what a client of this adapter exchanges with this aggregator, for images of `shape` (channels first)."""
    client = adapter.init(network)
    aggregator.check(network, client.own)
    if not aggregator.communicates:
        return Wire((), (), 0, 0)
    own = aggregator.shares(network, client.own)
    signals = signals_of(network, client, aggregator, shape)
    kinds = {kind_of(network, name) for name in own}
    return Wire(tuple(k for k in ALL_KINDS if k in kinds), tuple(sorted(signals)), _bytes(own), _bytes(signals))


def signals_of(network: Network, client: Client, aggregator: Aggregator, shape: tuple[int, ...]) -> Tensors:
    """Return one example of the signals that an aggregator asks a client for."""
    with torch.no_grad():
        return aggregator.signal(network, client, torch.zeros(2, *shape, device=network.device))


def table(network: Network, shape: tuple[int, ...]) -> str:
    """Return a table in Markdown: a row for every aggregator, a column for adapters that own the same tensors.

    A cell is the bytes of the model, which travel up and down, and those of signals, which travel up. Aggregators that
    serve one adapter only are left out.
    """
    families: dict[tuple[str, ...], list[str]] = {}
    for name, cls in adapters.classes().items():
        try:
            own = cls().init(network).own
        except UserError:  # it reads a file that was learnt for the model, and there is none
            continue
        if own:
            families.setdefault(tuple(own), []).append(name)
    columns = {" ".join(names): adapters.create(names[0]) for names in families.values()}
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    full = [on_the_wire(network, adapter, Aggregator(), shape) for adapter in columns.values()]
    lines.append("| *kind* | " + " | ".join(" ".join(wire.kinds) for wire in full) + " |")
    for name in (name for name, cls in aggregators.classes().items() if not cls.partner):
        cells = [_cell(network, adapter, aggregators.create(name), shape) for adapter in columns.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(network: Network, adapter: Adapter, aggregator: Aggregator, shape: tuple[int, ...]) -> str:
    try:
        wire = on_the_wire(network, adapter, aggregator, shape)
    except UserError:
        return "refused"
    up = f"{wire.bytes_model:,}"
    return f"{up} + {wire.bytes_signals:,} {' '.join(wire.signals)}" if wire.signals else up


def _bytes(tensors: Tensors) -> int:
    return sum(t.numel() * t.element_size() for t in tensors.values())
