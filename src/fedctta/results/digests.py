"""What pages read of a run: its numbers, by domain, client and position in time, without the arrays behind them.

A digest is small (about 300 numbers) where a record has one number per round, client and class. Its numbers are
rounded to float32, so that a digest that was written to a file and read again is the same, digit by digit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedctta.results.metrics import SCORES
from fedctta.results.records import Record
from fedctta.results.summaries import by_client, by_domain, by_position, of_run

ALIASES = {"dice": "macro_f1"}  # the same number by another name
METRICS = tuple(metric for metric in SCORES if metric not in ALIASES)
BESIDES = ("accuracy_after_shift", "calibration_error", "mean_entropy")  # shares of one, and nats
COSTS = ("same_domain_weight", "bytes_up", "bytes_down", "seconds", "peak_memory_mb")

Numbers = Mapping[str, float]


@dataclass(frozen=True)
class Weights:
    """What figures show of who listens to whom: W at some moments, and what client 1 takes from every client.

    `first[k]` stands from round `rounds[k]` until the next; `shifts` are the rounds in which domains change.
    """

    titles: tuple[str, ...]
    moments: NDArray[np.float32]  # [moments, N, N]
    first: NDArray[np.float32]  # [K, N]
    rounds: NDArray[np.int64]  # [K]
    shifts: tuple[int, ...]


@dataclass(frozen=True)
class Digest:
    """The numbers of one finished run, in percent where they are shares; see `metrics.SCORES` for the names.

    `parts` holds the numbers by domain, by client and by position, each by metric; of positions there is only the
    accuracy. `besides` are the other numbers of the whole run, and `classes` the accuracy of every class.
    """

    settings: Mapping[str, Any]
    origin: Mapping[str, Any]
    rounds: int
    whole: Numbers
    parts: Mapping[str, Mapping[str, Numbers]]
    besides: Numbers
    classes: tuple[float, ...] = ()
    weights: Weights | None = field(default=None, compare=False)

    @property
    def seconds(self) -> float:
        """How long the run took."""
        return self.besides["seconds"]

    def of_run(self, metric: str = "accuracy") -> float:
        """Return one number of the whole run."""
        return self.whole[ALIASES.get(metric, metric)]

    def split(self, by: str, metric: str = "accuracy") -> Numbers:
        """Return the numbers by "domain", "client", "position" or "class" (nan: never seen)."""
        if by == "class":
            return {f"C{k}": accuracy for k, accuracy in enumerate(self.classes)}
        return self.parts[by][ALIASES.get(metric, metric)]


def digest(run: Record, weights: Weights | None = None) -> Digest:
    """Return what pages read of a run; `weights` is what its figures show, where they show any."""
    whole = {metric: of_run(run, metric) for metric in (*METRICS, "forgetting")}
    return Digest(
        settings=run.settings,
        origin=run.origin,
        rounds=len(run.seen),
        whole=_short(whole) | {"seconds": run.seconds / run.present},
        parts={
            "domain": {metric: _short(by_domain(run, metric)) for metric in METRICS},
            "client": {metric: _short(by_client(run, metric)) for metric in METRICS},
            "position": {"accuracy": _short(by_position(run))},
        },
        besides=_short({name: getattr(run, name) for name in BESIDES}) | {name: getattr(run, name) for name in COSTS},
        classes=tuple(_short({str(k): 100 * v for k, v in enumerate(run.class_accuracy)}).values()),
        weights=weights,
    )


def _short(numbers: Numbers) -> dict[str, float]:
    """Round to what the file keeps."""
    return {name: float(np.float32(value)) for name, value in numbers.items()}
