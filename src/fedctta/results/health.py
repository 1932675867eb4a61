"""How the clients of a run fared, told without labels (`check`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

NOBODY, ADAPTED, SOURCE = 0, 1, 2  # who answers
ENTROPY_ROUNDS = 20  # over which the entropy is a mean, as the other means of batches are


class ClientHealth(NamedTuple):
    """One client at the end of a run: means over its last batches (None: not known).

    `accuracy`, of the model that answers, and `source_accuracy` are estimates. `alarms` are rounds, counted from 0;
    `by_source` is the share of its batches that the source model answered.
    """

    client: int
    entropy: float | None
    top_share: float | None
    disagreement: float | None
    accuracy: float | None
    source_accuracy: float | None
    answers: str
    by_source: float
    alarms: tuple[int, ...]

    def plain(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {**self._asdict(), "alarms": list(self.alarms)}


def health_of(
    answers: NDArray[np.uint8], alarms: NDArray[np.int64], means: Mapping[str, NDArray[np.float32]]
) -> tuple[ClientHealth, ...]:
    """Return the health of every client from what was noted in every round, [T, N]."""
    return tuple(
        _one(i, answers[:, i], alarms, {n: a[:, i] for n, a in means.items()}) for i in range(answers.shape[1])
    )


def _one(
    client: int, answers: NDArray[np.uint8], alarms: NDArray[np.int64], means: Mapping[str, NDArray[np.float32]]
) -> ClientHealth:
    there = np.flatnonzero(answers != NOBODY)
    last = {name: float(values[there[-1]]) if len(there) else np.nan for name, values in means.items()}
    if len(there):
        last["entropy"] = float(np.mean(means["entropy"][there[-ENTROPY_ROUNDS:]]))
    return ClientHealth(
        client=client,
        answers="source" if len(there) and answers[there[-1]] == SOURCE else "adapted",
        by_source=float((answers == SOURCE).sum() / max(1, len(there))),
        alarms=tuple(int(t) for who, t in alarms if who == client),
        **{name: None if np.isnan(value) else value for name, value in last.items()},
    )
