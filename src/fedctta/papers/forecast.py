"""What a reproduction would do: how many runs, which source models to train first, and about how long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedctta.papers.missing import Lacking
from fedctta.papers.planning import Plan
from fedctta.papers.playing import find_cells, find_current
from fedctta.papers.sources import Training, find_trained, find_trainings
from fedctta.results.digests import Digest
from fedctta.runs.cache import Cache


@dataclass(frozen=True)
class Forecast:
    """The runs of one preset, the seconds of those that are kept, and the trainings that come first."""

    name: str
    runs: int
    seconds: tuple[float, ...]
    trainings: tuple[Training, ...]

    @property
    def minutes(self) -> float | None:
        """Minutes of all runs left, one after another, if they take as long as the kept ones; None if none is kept."""
        left = self.runs - len(self.seconds)
        return left * sum(self.seconds) / len(self.seconds) / 60 if self.seconds else None

    def told(self) -> Iterator[str]:
        """Yield the lines of the plan."""
        left = self.runs - len(self.seconds)
        yield f"{self.name}: {self.runs:,} runs, {len(self.seconds):,} kept, {left:,} to play"
        if self.trainings:
            yield f"  source models to be trained first ({len(self.trainings)}):"
            yield from (f"    {training.command}" for training in self.trainings)
        if left and self.minutes is None:
            yield "  how long: not known before some runs are kept; play one panel, and ask again"
        elif left:
            yield f"  about {self.minutes:,.0f} minutes one after another, by the mean of the runs that are kept"


def forecast(plan: Plan, folder: Path) -> Forecast:
    """Return what playing a plan into a folder would do, without doing it."""
    cache = Cache()
    packed = find_current(plan.mine, folder, cache)
    left = [each for each in plan.mine if each.fingerprint not in packed]
    mine = find_trained(plan.paper, left) if (folder / "runs").is_dir() else []
    found = {**packed, **find_cells(mine, cache, Lacking(), folder)}
    kept = tuple(run.seconds for run in found.values() if isinstance(run, Digest))
    return Forecast(plan.paper.name, len(plan.mine), kept, tuple(find_trainings(plan.paper, left)))
