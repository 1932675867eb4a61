"""What is measured: the cells of the grid, the images each passes through the network, and how long they may take."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, get_args

import torch

from fedctta.adapters import adapters as client_methods
from fedctta.aggregators import aggregators as server_methods
from fedctta.bench.passes import count_passes
from fedctta.bench.shapes import SIDE, Shape
from fedctta.errors import UserError, either, unknown
from fedctta.keys import Precision, Stored
from fedctta.machine import choose_device
from fedctta.models import ARCHITECTURES

WAYS = {
    "a": "plain inference",
    "a'": "the same, launched kernel by kernel",
    "b": "ours",
    "c": "loop over models",
    "d": "published way",
}
LAUNCHED = "a'"  # only on a GPU, where way a is captured
LOOPED = {"c", "d"}  # written for some methods only
CLIENTS, SERVERS = ("bn", "grad", "tent", "bbn"), ("fedavg", "fedtsa", "fedctta")  # those methods


class Grid(NamedTuple):
    """What is measured unless it is said."""

    models: list[str]
    adapters: list[str]
    aggregators: list[str]
    clients: list[int]


WHOLE = Grid(["resnet8", "resnext29"], [*CLIENTS], [*SERVERS], [20, 200, 2000])
ON_CPU = Grid(["resnet8"], ["bn", "grad", "tent"], ["fedctta"], [20])
QUICK = Grid(["resnet8-w16"], [*CLIENTS], [*SERVERS], [8])
MIN_ROUNDS, ROUNDS = 3, 9


@dataclass(frozen=True)
class Cell:
    """One line of the table."""

    model: str
    adapter: str
    aggregator: str
    clients: int
    batch: int
    size: int = SIDE  # of pictures

    @property
    def shape(self) -> Shape:
        """The model and the size of its pictures."""
        return Shape(self.model, self.size)

    @property
    def network(self) -> str:
        """The model in words, with the size of its pictures where that is not the usual one."""
        return self.model if self.shape.series or self.size == SIDE else f"{self.model} at {self.size}"

    @property
    def passes(self) -> int:
        """Images a client passes through the network in a round."""
        return count_passes(self.shape, self.adapter, self.aggregator, self.batch)

    @property
    def looped(self) -> bool:
        """Whether loops over model objects are written for its methods."""
        return self.adapter in CLIENTS and self.aggregator in SERVERS and not (self.shape.dense or self.shape.series)

    @property
    def label(self) -> str:
        """The cell in words."""
        return f"{self.network} {self.adapter}+{self.aggregator} {self.clients} clients"


@dataclass(frozen=True)
class Plan:
    """The cells, the ways, and how long to measure: `rounds` of each way, or what fits into `seconds` a cell."""

    cells: tuple[Cell, ...]
    ways: tuple[str, ...]
    rounds: int
    seconds: float
    device: torch.device
    precision: Precision
    storage: Stored = "float32"  # of our clients


def make_plan(
    *,
    models: str | None = None,
    adapters: str | None = None,
    aggregators: str | None = None,
    clients: str | None = None,
    ways: str | None = None,
    batch: int = 10,
    size: int | None = None,
    rounds: int | None = None,
    seconds: float = 60.0,
    device: str = "auto",
    precision: str = "float32",
    storage: str = "float32",
    quick: bool = False,
    everything: bool = False,
) -> Plan:
    """Read lists written `a,b,c`; what is not given is the whole grid on CUDA and a small part of it on a CPU."""
    if quick and everything:
        raise UserError("--quick and --all contradict each other: give one of them")
    rounds = (MIN_ROUNDS if quick else ROUNDS) if rounds is None else rounds
    for name, value, least in (("batch", batch, 2), ("rounds", rounds, MIN_ROUNDS), ("size", size or SIDE, 8)):
        if value < least:
            raise UserError(f"--{name} {value} must be at least {least}")
    if not (math.isfinite(seconds) and seconds > 0):
        raise UserError(f"--seconds {seconds:g} must be above 0")
    if precision not in get_args(Precision):
        raise unknown("precision", precision, get_args(Precision))
    if storage not in get_args(Stored):
        raise unknown("storage", storage, get_args(Stored))
    if device not in ("auto", "cpu", "cuda"):
        raise unknown("device", device, ("auto", "cpu", "cuda"))
    place = choose_device(device)
    on_gpu = place.type == "cuda"
    if precision != "float32" and not on_gpu:
        raise UserError(f"--precision {precision} has no effect on a CPU: leave it out")
    if everything and (on_gpu or None not in (models, adapters, aggregators, clients)):
        raise UserError("--all has no effect on a GPU or beside all four lists: leave it out")
    usual = QUICK if quick else WHOLE if everything or on_gpu else ON_CPU
    grid = (
        _names("model", models, usual.models, ARCHITECTURES),
        _names("adapter", adapters, usual.adapters, client_methods.classes()),
        _names("aggregator", aggregators, usual.aggregators, server_methods.classes()),
        sorted(_counts(clients, usual.clients)),  # small ones first: larger ones are estimated by them
    )
    if size is not None and all(ARCHITECTURES[name].series for name in grid[0]):
        raise UserError(f"--size {size} has no effect on series: leave it out")
    cells = tuple(Cell(*which, batch, size or SIDE) for which in itertools.product(*grid))
    chosen = _choose_ways(ways, cells, on_gpu)
    if storage != "float32" and "b" not in chosen:
        raise UserError(f"--storage {storage} has no effect without way b: leave it out")
    return Plan(
        cells=cells,
        ways=chosen,
        rounds=rounds,
        seconds=seconds,
        device=place,
        precision=precision,  # type: ignore[arg-type]
        storage=storage,  # type: ignore[arg-type]
    )


def _choose_ways(text: str | None, cells: Iterable[Cell], on_gpu: bool) -> tuple[str, ...]:
    """Return the ways asked for; by default all that the device and the methods have."""
    looped = any(cell.looped for cell in cells)
    known = [way for way in WAYS if (on_gpu or way != LAUNCHED) and (looped or way not in LOOPED)]
    ways = _names("way", text, known, WAYS)
    if LAUNCHED in ways and not on_gpu:
        raise UserError(f"way {LAUNCHED} differs from way a on a GPU only: leave it out")
    if missing := LOOPED & {*ways} - {*known}:
        raise UserError(
            f"way {either(sorted(missing))} is written for adapters {either(CLIENTS)} with aggregators"
            f" {either(SERVERS)}, and models of single pictures: leave it out"
        )
    return tuple(sorted(ways))


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
