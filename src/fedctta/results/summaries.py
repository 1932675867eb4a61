"""The numbers of a run by name, in percent: of the whole, or of its domains, clients or stretches of time."""

from __future__ import annotations

import numpy as np

from fedctta.results.metrics import score
from fedctta.results.records import Record


def of_run(run: Record, metric: str = "accuracy") -> float:
    """Return one number of the whole run (names: `metrics.SCORES`, and `forgetting` and `seconds` a client)."""
    if metric == "forgetting":
        return 100 * run.forgetting
    if metric == "seconds":
        return run.seconds / run.present
    return 100 * score(metric, run.class_seen.sum(0), run.class_right.sum(0), run.class_predicted.sum(0))


def by_domain(run: Record, metric: str = "accuracy") -> dict[str, float]:
    """Return the number of every domain that was met."""
    counts = zip(run.domains, run.class_seen, run.class_right, run.class_predicted, strict=True)
    return {name: 100 * score(metric, s, r, p) for name, s, r, p in counts if s.any()}


def by_client(run: Record, metric: str = "accuracy") -> dict[str, float]:
    """Return the number of every client that was ever there, counted from 1."""
    seen, right, predicted = (c.sum(0)[:, None] for c in (run.class_seen, run.class_right, run.class_predicted))
    counts = enumerate(zip(seen, right, predicted, strict=True))
    return {str(i + 1): 100 * score(metric, s, r, p) for i, (s, r, p) in counts if s.any()}


def by_position(run: Record) -> dict[str, float]:
    """Return the accuracy in as many equal stretches of time as there are domains, counted from 1.

    One in which nobody was there has none.
    """
    stretches = enumerate(np.array_split(np.arange(len(run.seen)), len(run.domains)))
    counts = {str(k + 1): (run.correct[rounds].sum(), run.seen[rounds].sum()) for k, rounds in stretches}
    return {name: float(100 * correct / seen) for name, (correct, seen) in counts.items() if seen}
