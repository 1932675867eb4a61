"""Why a cell has no record: it failed, it was not run, or its data cannot be had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedctta.errors import UserError
from fedctta.report.comparison import UNAVAILABLE
from fedctta.runs.cache import Cache
from fedctta.runs.datasets import data_keys
from fedctta.runs.settings import Experiment

NOT_RUN = f"{UNAVAILABLE}: not run yet"
OTHER_SHARD = f"{UNAVAILABLE}: left to another shard"


@dataclass(frozen=True)
class Missing:
    """Why a cell has no record."""

    reason: str


class Lacking:
    """Remembers which data could be had, so that nobody loads or waits for the same twice."""

    def __init__(self) -> None:
        self._reasons: dict[tuple[Any, ...], str] = {}

    def reason(self, experiment: Experiment, cache: Cache) -> str:
        """Return why the experiment's data cannot be had, or nothing if they can."""
        data = *data_keys(experiment), experiment.model, experiment.weights  # weights decide what is held out
        if data not in self._reasons:
            self._reasons[data] = ""
            try:
                cache.data(experiment)
            except UserError as error:
                self._reasons[data] = f"{UNAVAILABLE}: {error}"
        return self._reasons[data]

    def missing(self, experiment: Experiment, cache: Cache) -> Missing | None:
        """Return that the experiment has no record because of its data, or None if they can be had."""
        reason = self.reason(experiment, cache)
        return Missing(reason) if reason else None
