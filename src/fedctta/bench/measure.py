"""Time and memory of every way in every cell, within a budget of seconds.

The ways of a cell take turns: a few rounds of each, then again, so that a busy machine slows all alike; a round's time
is the median, with one thread on a CPU that of CPU seconds. The first round of every turn, which makes the clients and
warms the device up, is not counted, nor are those in which our engine captures its round as a CUDA graph. How long a
round will take is known from fewer clients before it is tried.
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter, process_time

import torch

from fedctta.bench.cells import LOOPED, MIN_ROUNDS, Cell, Plan
from fedctta.bench.memory import shortage
from fedctta.bench.ways import WAYS
from fedctta.bench.work import Work, find_refusal
from fedctta.core.gpu_memory import release_memory
from fedctta.engine.cuda_graphs import NotCapturable
from fedctta.errors import UserError
from fedctta.machine import arithmetic, peak_memory_mb, reset_peak_memory

CAPTURE = 5  # rounds until a round is replayed and proved to be right
FEWEST, STEP = 2, 10  # clients of the first trial, and how many times more the next has


@dataclass(frozen=True)
class Timing:
    """Seconds of every round counted, and the peak of memory."""

    seconds: tuple[float, ...]
    peak_mb: float

    @property
    def median(self) -> float:
        """Seconds a round."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Skipped:
    """Why a way was not measured."""

    reason: str


@dataclass(frozen=True)
class Row:
    """What one cell gave, by way."""

    cell: Cell
    found: dict[str, Timing | Skipped]

    def timing(self, way: str) -> Timing | None:
        """Return a way's timing, if it was measured."""
        found = self.found.get(way)
        return found if isinstance(found, Timing) else None

    def seconds(self, way: str) -> float:
        """Return seconds per round; nan where it was not measured."""
        timing = self.timing(way)
        return math.nan if timing is None else timing.median

    def images_per_second(self, way: str) -> float:
        """Return how many of the stream's images per second are adapted to and predicted."""
        return self.cell.clients * self.cell.batch / self.seconds(way)

    def ratio(self, over: str, under: str) -> float:
        """Return how many times as long one way takes as another."""
        return self.seconds(over) / self.seconds(under)


class Known:
    """Seconds a round of a way, by the number of clients, and what they say of more clients."""

    def __init__(self) -> None:
        self.seconds: dict[int, float] = {}

    def guess(self, clients: int) -> float:
        """Extend what is known: in proportion, or as steeply as between the two largest numbers, up to the square."""
        *_, (most, spent) = sorted(self.seconds.items())
        power = 1.0
        if len(self.seconds) > 1:
            fewer, less = sorted(self.seconds.items())[-2]
            power = min(2.0, max(1.0, math.log(spent / less) / math.log(most / fewer)))
        return spent * math.pow(clients / most, power)


Take = Callable[[Cell, str, int, Plan], Timing | Skipped]


def refuse_impossible(plan: Plan) -> None:
    """Raise a UserError if the models and methods of no cell fit together."""
    refusals = []
    for cell in plan.cells:
        refusals.append(find_refusal(replace(cell, clients=FEWEST), plan.device, plan.storage))
        if refusals[-1] is None:
            return
    raise UserError(f"nothing to measure: {refusals[0]}")


def run(plan: Plan, on_cell: Callable[[int, Cell], None] = lambda k, cell: None) -> Iterator[Row]:
    """Measure cell by cell; `on_cell` is told which one comes."""
    known: dict[tuple[str, ...], Known] = {}
    for k, cell in enumerate(plan.cells):
        on_cell(k, cell)
        of_ways = {
            way: known.setdefault((cell.network, cell.adapter, cell.aggregator, way), Known()) for way in plan.ways
        }
        yield measure(cell, plan, of_ways)


def measure(cell: Cell, plan: Plan, known: dict[str, Known], take: Take | None = None) -> Row:
    """Measure one cell: choose the ways that fit, then let them take turns until rounds or seconds are used up."""
    take = take or take_turn
    _let_go(plan.device)  # what torch keeps of the cell before would look taken
    found: dict[str, Timing | Skipped] = {}
    guesses: dict[str, float] = {}
    if refusal := find_refusal(replace(cell, clients=FEWEST), plan.device, plan.storage):
        return Row(cell, dict.fromkeys(plan.ways, Skipped(refusal)))
    for way in plan.ways:
        missing = "it is not written for this method" if way in LOOPED and not cell.looped else None
        missing = missing or shortage(cell, way, plan.device, plan.storage)
        if missing:
            found[way] = Skipped(missing)
        else:
            guesses[way] = estimate(cell, way, plan, known[way], take)
    left = plan.seconds
    for way, guess in sorted(guesses.items(), key=lambda item: item[1]):
        if math.isinf(guess):
            found[way] = Skipped("a trial with fewer clients ran out of GPU memory")
            del guesses[way]
        elif (need := guess * (MIN_ROUNDS + 1)) > left:
            found[way] = Skipped(f"{MIN_ROUNDS} rounds would take about {need:.0f} s, and {left:.0f} s are left")
            del guesses[way]
        else:
            left -= need
    began, done = perf_counter(), 0
    while guesses and done < plan.rounds:
        turn = perf_counter()
        rounds = min(MIN_ROUNDS, plan.rounds - done)
        for way in list(guesses):
            found[way] = together(found.get(way), take(cell, way, rounds, plan))
            if isinstance(found[way], Skipped):
                del guesses[way]
        done += rounds
        if 2 * perf_counter() - turn - began > plan.seconds:  # another turn would be too long
            break
    row = Row(cell, {way: found[way] for way in plan.ways})
    for way in guesses:
        known[way].seconds[cell.clients] = row.seconds(way)
    return row


def estimate(cell: Cell, way: str, plan: Plan, known: Known, take: Take) -> float:
    """Return about how long a round takes, from trials with fewer and then more clients as far as there is time."""
    while True:
        most = max(known.seconds, default=0)
        if most:
            guess = known.guess(cell.clients)
            near = cell.clients <= STEP * most
            if near or known.guess(STEP * most) * 2 > plan.seconds:
                return guess
        few = min(cell.clients, STEP * most or FEWEST)
        tried = take(replace(cell, clients=few), way, 1, plan)
        if isinstance(tried, Skipped):
            return math.inf
        known.seconds[few] = tried.median


def take_turn(cell: Cell, way: str, rounds: int, plan: Plan) -> Timing | Skipped:
    """Do some rounds, and before them those that are not counted."""
    device, marks, clock = plan.device, [], choose_clock(plan.device)
    before = 1 + CAPTURE if way == "b" and device.type == "cuda" else 1  # way a captures before its first tick

    def tick() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        marks.append(clock())

    _let_go(device)
    reset_peak_memory(device)
    before_mb = torch.cuda.memory_allocated(device) / 2**20 if device.type == "cuda" else 0.0  # others' workspaces
    try:
        with arithmetic(plan.precision):
            WAYS[way](Work(cell, before + rounds, device, plan.precision, plan.storage), tick)
    except NotCapturable as error:
        return Skipped(str(error))
    except torch.OutOfMemoryError:
        marks.clear()  # what was taken is let go before the next way: until then this error holds on to it
    if not marks:
        return Skipped("ran out of GPU memory")
    spent = tuple(later - earlier for earlier, later in pairwise(marks[before - 1 :]))
    return Timing(spent, peak_memory_mb(device) - before_mb)


def choose_clock(device: torch.device) -> Callable[[], float]:
    """Return the clock of rounds: with one thread on a CPU that of the process, which does not count other ones."""
    return process_time if device.type == "cpu" and torch.get_num_threads() == 1 else perf_counter


def together(one: Timing | Skipped | None, other: Timing | Skipped) -> Timing | Skipped:
    """Return two turns of a way as one."""
    if isinstance(one, Timing) and isinstance(other, Timing):
        return Timing(one.seconds + other.seconds, max(one.peak_mb, other.peak_mb))
    return other


def _let_go(device: torch.device) -> None:
    """Free what the way before has left, its CUDA graphs included."""
    gc.collect()
    release_memory(device)
