"""Who listens to whom: the collaboration matrices W of a run as pictures show them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedctta.report.curves import shifts
from fedctta.results.digests import Weights
from fedctta.results.records import Record

MOMENTS = 5  # matrices shown of a run


def weights_there(run: Record) -> NDArray[np.float32]:
    """Return W of every kept round, the rows of clients that were away then nan: nothing was mixed for them.

    A run that never sent anything keeps the identity matrix once, for all clients that were ever present.
    """
    there = run.domain[run.collaboration_rounds] >= 0
    if not run.bytes_up:
        there = there | (run.domain >= 0).any(0)
    shown: NDArray[np.float32] = np.where(there[..., None], run.collaboration, np.float32(np.nan))
    return shown


def mean_weights(run: Record) -> NDArray[np.float64]:
    """Return the mean of W, every row over the kept rounds in which its client was there; nan if there was none."""
    shown = weights_there(run)
    rounds = np.isfinite(shown).all(2).sum(0)[:, None]
    total = np.nansum(shown, axis=0, dtype=np.float64)
    mean: NDArray[np.float64] = np.divide(total, rounds, out=np.full(total.shape, np.nan), where=rounds > 0)
    return mean


def pick_moments(run: Record, count: int) -> list[tuple[str, NDArray[Any]]]:
    """Return W at up to `count` moments from the first tenth of a run to the last, none twice, each with its title.

    Without uploads W is the same at all times.
    """
    if not run.bytes_up:
        return [("every round", mean_weights(run))]
    shown = weights_there(run)
    moments = sorted({round((len(shown) - 1) * share) for share in np.linspace(0.1, 0.9, count).tolist()})
    return [(f"round {run.collaboration_rounds[k] + 1}", shown[k]) for k in moments]


def depict(run: Record) -> Weights | None:
    """Return what the figures of a reproduction show of a run's W; nothing if it was not kept."""
    if not run.collaboration.size:
        return None
    titles, moments = zip(*pick_moments(run, MOMENTS), strict=True)
    first = weights_there(run)[:, 0]
    at = tuple(shifts(run.domain).tolist())
    return Weights(titles, np.array(moments, np.float32), first, run.collaboration_rounds, at)


def scale_floor(clients: int) -> float:
    """Return the least a heat map's scale should reach to, so that uniform weights look pale, not extreme."""
    return min(1.0, 2.0 / clients)
