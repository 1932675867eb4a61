"""What of every page is done, what is missing, and how long the missing will take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from fedctta.papers.campaign import Campaign
from fedctta.papers.costs import Costs
from fedctta.papers.planning import Plan
from fedctta.papers.pool import Kept
from fedctta.papers.sources import find_trainings
from fedctta.runs.settings import Experiment


@dataclass(frozen=True)
class PageStatus:
    """One page: its runs, those that are done, and what the missing will cost as far as that is known.

    `seeds` are the fewest and the most that a cell has, and `wanted` how many it should have.
    """

    name: str
    runs: int
    done: int
    seeds: tuple[int, int]
    wanted: tuple[int, int]
    minutes: Mapping[str, float]  # by what computes: GPU, CPU
    unknown: int  # missing runs that no finished run is like
    trainings: int = 0  # source models that the missing runs need first

    @property
    def missing(self) -> int:
        """Return how many runs are missing."""
        return self.runs - self.done

    def cost(self) -> str:
        """Say how long the missing runs will take, one after another."""
        if not self.missing:
            return "-"
        known = [
            f"{minutes:,.0f} {on} min" if minutes >= 1 else f"< 1 {on} min" for on, minutes in self.minutes.items()
        ]
        rest = [f"not known for {self.unknown:,}"] if known and self.unknown else ["not known"] if self.unknown else []
        train = [f"{self.trainings} source model{'s' * (self.trainings > 1)} to train"] if self.trainings else []
        return " + ".join(known + rest + train)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        minutes = {on: round(value, 2) for on, value in self.minutes.items()}
        seeds = {"seeds": list(self.seeds), "seeds_wanted": list(self.wanted)}
        counts = {"runs": self.runs, "done": self.done, "missing": self.missing}
        return {
            "page": self.name,
            **counts,
            **seeds,
            "minutes": minutes,
            "missing_of_unknown_cost": self.unknown,
            "trainings": self.trainings,
        }


def find_status(campaign: Campaign, pool: Mapping[str, Kept]) -> list[PageStatus]:
    """Return the status of every preset, and last of all together, where shared runs count once."""
    costs = Costs(pool.values())
    pages = []
    trained: set[Path] = set()
    for plan in campaign.plans:
        page = _status(plan.paper.name, plan.mine, _seeds(plan, pool), pool, costs)
        left = [run for run in plan.mine if run.anywhere.fingerprint not in pool]
        paths = {training.path for training in find_trainings(plan.paper, left)}
        trained |= paths
        pages.append(replace(page, trainings=len(paths)))
    low, high = ([page.seeds[k] for page in pages] for k in (0, 1))
    least, most = ([page.wanted[k] for page in pages] for k in (0, 1))
    seeds = (min(low, default=0), max(high, default=0)), (min(least, default=0), max(most, default=0))
    return [*pages, replace(_status("all", campaign.mine, seeds, pool, costs), trainings=len(trained))]


Seeds = tuple[tuple[int, int], tuple[int, int]]


def _status(name: str, runs: Sequence[Experiment], seeds: Seeds, pool: Mapping[str, Kept], costs: Costs) -> PageStatus:
    left = [run for run in runs if run.anywhere.fingerprint not in pool]
    minutes: dict[str, float] = {}
    unknown = 0
    for run in left:
        if (cost := costs.estimate(run)) is None:
            unknown += 1
        else:
            minutes[cost.on] = minutes.get(cost.on, 0) + cost.seconds / 60
    return PageStatus(name, len(runs), len(runs) - len(left), *seeds, minutes, unknown)


def _seeds(plan: Plan, pool: Mapping[str, Kept]) -> Seeds:
    """Return the fewest and the most seeds that cells have, and that they should have."""
    there = Counter(_without_seed(run) for run in plan.mine if run.anywhere.fingerprint in pool)
    cells = Counter(_without_seed(run) for run in plan.mine)
    have = [there[cell] for cell in cells]
    return (min(have), max(have)), (min(cells.values()), max(cells.values()))


def _without_seed(run: Experiment) -> str:
    return str(sorted((key, value) for key, value in run.words.items() if key != "seed"))


def show_status(pages: Iterable[PageStatus]) -> Table:
    """Return the status as a table."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("page", "done", "of", "missing", "seeds", "of", "the missing take"):
        table.add_column(name, justify="left" if name in ("page", "the missing take") else "right")
    for page in pages:
        counts = [f"{count:,}" for count in (page.done, page.runs, page.missing)]
        style = "bold" if page.name == "all" else "dim" if not page.missing else ""
        table.add_row(page.name, *counts, _range(page.seeds), _range(page.wanted), page.cost(), style=style)
    return table


def _range(seeds: tuple[int, int]) -> str:
    return str(seeds[0]) if seeds[0] == seeds[1] else f"{seeds[0]} to {seeds[1]}"
