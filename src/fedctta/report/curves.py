"""The arrays behind the charts: accuracy over rounds, where domains shift, who shares a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedctta.results.records import Record

Array = NDArray[np.float64]


def accuracy_over_time(runs: Sequence[Record]) -> Array:
    """Accuracy in percent up to every round, pooled over seeds and clients.

    a(t) = 100 * sum correct / sum seen over rounds t - w + 1 to t, with w = `window`: no later round counts, so a curve
    never moves before what moves it. Where nothing was seen in the window it is nan.
    """
    rounds = max(run.seen.shape[0] for run in runs)
    correct, seen = np.zeros(rounds), np.zeros(rounds)
    for run in runs:
        correct[: run.seen.shape[0]] += run.correct.sum(1)
        seen[: run.seen.shape[0]] += run.seen.sum(1)
    right, total = (_trailing_sum(counts, window(rounds)) for counts in (correct, seen))
    return 100 * np.divide(right, total, out=np.full(rounds, np.nan), where=total > 0)


def mean_over_time(parts: Sequence[NDArray[np.floating[Any]]]) -> Array:
    """Mean of all that is known (not nan) in values[T, N] of several runs, up to every round and over its `window`."""
    rounds = max(len(values) for values in parts)
    total, known = np.zeros(rounds), np.zeros(rounds)
    for values in parts:
        total[: len(values)] += np.nansum(values, 1)
        known[: len(values)] += np.isfinite(values).sum(1)
    sums, counts = (_trailing_sum(each, window(rounds)) for each in (total, known))
    return np.asarray(np.divide(sums, counts, out=np.full(rounds, np.nan), where=counts > 0))


def window(rounds: int) -> int:
    """Return over how many rounds a curve is smoothed: a thirtieth of the run, at least one."""
    return max(1, round(rounds / 30))


def accuracy_by_domain(runs: Sequence[Record]) -> dict[str, float]:
    """Accuracy in percent of every domain, the mean over the seeds that met it."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for name, share in run.accuracy_by_domain.items():
            if np.isfinite(share):
                found.setdefault(name, []).append(100 * share)
    return {name: float(np.mean(values)) for name, values in found.items()}


def known_domain(domain: NDArray[np.int32]) -> NDArray[np.int32]:
    """Fill a client's absences with the domain it met last (-1 before its first): absence is no shift."""
    rounds = np.arange(len(domain))[:, None]
    last = np.maximum.accumulate(np.where(domain >= 0, rounds, 0), axis=0)
    return np.take_along_axis(domain, last, axis=0)


def shifts(domain: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the rounds in which any client's domain differs from the one it met before."""
    known = known_domain(domain)
    moved = (known[1:] != known[:-1]) & (known[:-1] >= 0)
    return np.flatnonzero(moved.any(1)) + 1


@dataclass(frozen=True)
class Group:
    """Clients that walk through the same domains, and the rounds at which each stretch begins."""

    clients: tuple[int, ...]
    stretches: tuple[tuple[int, int], ...]  # (first round, domain; -1: away)

    @property
    def name(self) -> str:
        """The clients in words, counted from 1: `clients 1-5, 8`."""
        parts: list[list[int]] = []
        for client in self.clients:
            if parts and parts[-1][-1] == client - 1:
                parts[-1].append(client)
            else:
                parts.append([client])
        spans = ", ".join(f"{p[0] + 1}-{p[-1] + 1}" if len(p) > 1 else f"{p[0] + 1}" for p in parts)
        return f"client{'s' if len(self.clients) > 1 else ''} {spans}"


def groups(record: Record) -> tuple[Group, ...]:
    """Gather the clients of a run by what they meet and when they are away."""
    together: dict[bytes, list[int]] = {}
    for client in range(record.domain.shape[1]):
        together.setdefault(record.domain[:, client].tobytes(), []).append(client)
    return tuple(Group(tuple(clients), _stretches(record.domain[:, clients[0]])) for clients in together.values())


def spread_out(count: int, most: int) -> NDArray[np.int64]:
    """Pick at most `most` of `count` positions, evenly, first and last included."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)) if count else _NONE


_NONE = np.zeros(0, dtype=np.int64)


def _stretches(sequence: NDArray[np.int32]) -> tuple[tuple[int, int], ...]:
    starts = np.concatenate([[0], np.flatnonzero(sequence[1:] != sequence[:-1]) + 1])
    return tuple((int(t), int(sequence[t])) for t in starts)


def _trailing_sum(values: Array, width: int) -> Array:
    total = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(total[1:] - total[np.maximum(np.arange(1, len(total)) - width, 0)])
