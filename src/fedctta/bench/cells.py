"""What is measured: the cells of the grid, the images each passes through the network, and how long they may take."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, get_args

import torch

from fedctta.aggregators.fedctta import FedCTTA
from fedctta.errors import UserError, unknown
from fedctta.keys import Precision
from fedctta.machine import choose_device
from fedctta.models import ARCHITECTURES

WAYS = {"a": "plain inference", "b": "ours", "c": "loop over models", "d": "published way"}

PASSES = {"bn": 2, "grad": 4, "tent": 3, "bbn": 7}
"""Passes of a client's batch in a round: one to predict, the others to adapt.

A backward pass counts as two where it gives gradients of all weights and of inputs (grad), and as one where
convolutions are frozen and it gives those of inputs alone (tent, bbn). To adapt, bn makes one forward pass; grad and
tent forward and backward; bbn one for labels, one of the source, forward and backward of teacher and of student.
"""

SIGNALS: dict[str, Callable[[int], int]] = {
    "fedavg": lambda batch: 0,
    "fedtsa": lambda batch: batch,
    "fedctta": lambda batch: FedCTTA().count,
}
"""Images a client passes through a network for the server besides: its batch (source model), or the probe."""


class Grid(NamedTuple):
    """What is measured unless it is said."""

    models: list[str]
    adapters: list[str]
    aggregators: list[str]
    clients: list[int]


WHOLE = Grid(["resnet8", "resnext29"], [*PASSES], [*SIGNALS], [20, 200, 2000])
ON_CPU = Grid(["resnet8"], ["bn", "grad", "tent"], ["fedctta"], [20])
QUICK = Grid(["resnet8-w16"], [*PASSES], [*SIGNALS], [8])
MIN_ROUNDS, ROUNDS = 3, 9


@dataclass(frozen=True)
class Cell:
    """One line of the table."""

    model: str
    adapter: str
    aggregator: str
    clients: int
    batch: int

    @property
    def passes(self) -> int:
        """Images a client passes through the network in a round."""
        return PASSES[self.adapter] * self.batch + SIGNALS[self.aggregator](self.batch)

    @property
    def label(self) -> str:
        """The cell in words."""
        return f"{self.model} {self.adapter}+{self.aggregator} {self.clients} clients"


@dataclass(frozen=True)
class Plan:
    """The cells, the ways, and how long to measure: `rounds` of each way, or what fits into `seconds` a cell."""

    cells: tuple[Cell, ...]
    ways: tuple[str, ...]
    rounds: int
    seconds: float
    device: torch.device
    precision: Precision


def make_plan(
    *,
    models: str | None = None,
    adapters: str | None = None,
    aggregators: str | None = None,
    clients: str | None = None,
    ways: str = "a,b,c,d",
    batch: int = 10,
    rounds: int | None = None,
    seconds: float = 60.0,
    device: str = "auto",
    precision: str = "float32",
    quick: bool = False,
    everything: bool = False,
) -> Plan:
    """Read lists written `a,b,c`; what is not given is the whole grid on CUDA and a small part of it on a CPU."""
    if quick and everything:
        raise UserError("--quick and --all contradict each other: give one of them")
    rounds = (MIN_ROUNDS if quick else ROUNDS) if rounds is None else rounds
    for name, value, least in (("batch", batch, 2), ("rounds", rounds, MIN_ROUNDS)):
        if value < least:
            raise UserError(f"--{name} {value} must be at least {least}")
    if not (math.isfinite(seconds) and seconds > 0):
        raise UserError(f"--seconds {seconds:g} must be above 0")
    if precision not in get_args(Precision):
        raise unknown("precision", precision, get_args(Precision))
    if device not in ("auto", "cpu", "cuda"):
        raise unknown("device", device, ("auto", "cpu", "cuda"))
    place = choose_device(device)
    usual = QUICK if quick else WHOLE if everything or place.type == "cuda" else ON_CPU
    grid = (
        _names("model", models, usual.models, [n for n, known in ARCHITECTURES.items() if not known.dense]),
        _names("adapter", adapters, usual.adapters, PASSES),
        _names("aggregator", aggregators, usual.aggregators, SIGNALS),
        sorted(_counts(clients, usual.clients)),  # small ones first: larger ones are estimated by them
    )
    return Plan(
        cells=tuple(Cell(*which, batch) for which in itertools.product(*grid)),
        ways=tuple(sorted(_names("way", ways, WAYS, WAYS))),
        rounds=rounds,
        seconds=seconds,
        device=place,
        precision=precision,  # type: ignore[arg-type]
    )


def _names(kind: str, text: str | None, usual: Iterable[str], known: Iterable[str]) -> list[str]:
    names = list(usual) if text is None else _split(kind, text)
    for name in names:
        if name not in known:
            raise unknown(f"{kind} to measure", name, known)
    return names


def _counts(text: str | None, usual: Iterable[int]) -> list[int]:
    words = [str(count) for count in usual] if text is None else _split("number of clients", text)
    for word in words:
        if not word.isdecimal() or int(word) < 2:
            raise UserError(f"--clients {word} is not a number of clients: write whole numbers from 2 on, as 20,200")
    return list(dict.fromkeys(map(int, words)))


def _split(kind: str, text: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UserError(f"no {kind} is given: write one, or several with commas between")
    return list(dict.fromkeys(words))
