"""All presets at once: every distinct run of them, played once into one pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from fedctta.errors import UserError, unknown
from fedctta.files import require_writable
from fedctta.papers.missing import Lacking, Missing
from fedctta.papers.planning import Plan, list_panels, make_plan, take_shard
from fedctta.papers.playing import attempt, is_current
from fedctta.papers.pool import Kept, read_pool
from fedctta.papers.selection import select
from fedctta.papers.sources import Training, find_trainings, train_sources
from fedctta.papers.tables import Paper, load_paper
from fedctta.report.comparison import UNAVAILABLE
from fedctta.runs.cache import Cache
from fedctta.runs.jobs import side_by_side
from fedctta.runs.preset_files import published
from fedctta.runs.progress import RoundBar
from fedctta.runs.settings import Experiment
from fedctta.runs.trial import run_one


class Outcome(NamedTuple):
    """What became of the runs of a campaign: how many there are, were kept, were played, and why others were not."""

    runs: int
    kept: int
    played: int
    reasons: Counter[str]

    @property
    def failed(self) -> int:
        """Return how many failed for other reasons than missing data."""
        return sum(count for reason, count in self.reasons.items() if not reason.startswith(UNAVAILABLE))


@dataclass(frozen=True)
class Campaign:
    """The presets with all their runs, and those, every one once, that are this machine's."""

    plans: tuple[Plan, ...]
    mine: tuple[Experiment, ...]


def plan_all(
    seeds: int | None = None,
    quick: bool = False,
    shard: str = "1/1",
    device: str = "auto",
    names: Sequence[str] = (),
    panels: Sequence[str] = (),
    only: Sequence[str] = (),
) -> Campaign:
    """Return the runs of all presets, or of those named, or of some panels of theirs, the first seed of all first.

    A preset that ranks others stands for these, and one that has none of the panels has no part in it; nor have runs
    that `only` leaves out (`selection.select`).
    """
    if seeds is not None and seeds < 1:
        raise UserError(f"--seeds {seeds} must be at least 1")
    papers = choose_papers(names)
    known = list(dict.fromkeys(panel for paper in papers for panel in list_panels(paper)))
    for panel in panels:
        if panel not in known:
            raise unknown("panel", panel, known)
    plans = []
    for paper in papers:
        mine = [panel for panel in panels if panel in list_panels(paper)]
        if mine or not panels:
            plans.append(make_plan(paper.name, seeds, quick, mine, "1/1", {"device": device}))
    if only:
        meant = {each.fingerprint for each in select([each for plan in plans for each in plan.mine], only)}
        parts = [(plan, tuple(each for each in plan.mine if each.fingerprint in meant)) for plan in plans]
        plans = [replace(plan, mine=mine) for plan, mine in parts if mine]
    every: dict[str, Experiment] = {}
    for experiment in sorted((each for plan in plans for each in plan.mine), key=lambda each: each.seed):
        every.setdefault(experiment.fingerprint, experiment)
    return Campaign(tuple(plans), tuple(take_shard(list(every.values()), shard)))


def choose_papers(names: Sequence[str]) -> list[Paper]:
    """Return the presets of these names that have runs of their own, each once; without names, all."""
    for name in names:
        if "=" in name:
            raise UserError(
                f"{name}: presets are played as they are here; `fedctta reproduce PRESET {name}` changes one"
            )
        if name not in published():
            raise unknown("preset", name, published())
    named = [load_paper(name) for name in names or published()]
    parts = [each for paper in named for each in ([load_paper(part) for part in paper.presets] or [paper])]
    return list({paper.name: paper for paper in parts if paper.panels}.values())


def play_all(campaign: Campaign, folder: Path, jobs: int, console: Console, progress: bool = False) -> Outcome:
    """Play the runs that the pool does not have; one that fails does not keep the others from running.

    Runs whose source model must be trained first come last.
    """
    require_writable(folder / "runs")
    if jobs < 1:
        raise UserError(f"--jobs {jobs} must be at least 1")
    cache, pool = Cache(), read_pool(folder)
    left = [each for each in campaign.mine if not _is_kept(each, pool, cache)]
    untrained = _find_untrained(campaign.plans, left)
    play = partial(_play_ready, cache=cache, folder=folder, jobs=jobs, console=console, progress=progress)
    reasons = play([each for each in left if each.fingerprint not in untrained])
    reasons |= _train(untrained, jobs, console)
    reasons |= play([each for each in left if each.fingerprint in untrained.keys() - reasons.keys()])
    return Outcome(
        len(campaign.mine), len(campaign.mine) - len(left), len(left) - len(reasons), Counter(reasons.values())
    )


def _is_kept(experiment: Experiment, pool: Mapping[str, Kept], cache: Cache) -> bool:
    run = pool.get(experiment.anywhere.fingerprint)
    return run is not None and is_current(experiment, run.settings, cache)


def _find_untrained(plans: Sequence[Plan], left: Sequence[Experiment]) -> dict[str, Training]:
    """Return the training that must come first of every run that needs one, by fingerprint."""
    wanted = {experiment.fingerprint for experiment in left}
    return {
        run.fingerprint: training
        for plan in plans
        for run in plan.mine
        if run.fingerprint in wanted
        for training in find_trainings(plan.paper, [run])
    }


def _train(untrained: Mapping[str, Training], jobs: int, console: Console) -> dict[str, str]:
    """Train what runs need; return why those cannot be played whose model cannot be trained."""
    trainings = list({each.path: each for each in untrained.values()}.values())
    failed = train_sources(trainings, lambda line: console.print(line, soft_wrap=True), jobs)
    return {key: f"{UNAVAILABLE}: {failed[each.path]}" for key, each in untrained.items() if each.path in failed}


def _play_ready(experiments: Sequence[Experiment], cache: Cache, **how: Any) -> dict[str, str]:
    """Play the experiments whose data can be had; return by fingerprint why others were not played, or failed."""
    lacking = Lacking()
    reasons = {each.fingerprint: why for each in experiments if (why := lacking.reason(each, cache))}
    ready = [each for each in experiments if each.fingerprint not in reasons]
    return reasons | (_play(ready, cache, **how) if ready else {})


def _play(
    experiments: Sequence[Experiment], cache: Cache, folder: Path, jobs: int, console: Console, progress: bool
) -> dict[str, str]:
    """Play experiments and return by fingerprint why those failed that did."""
    if jobs != 1:
        done = count(1)
        say = partial(_say_done, console, len(experiments), done) if progress else lambda experiment, reason: None
        return side_by_side(experiments, folder, jobs, resume=True, on_done=say)
    bar, failed = RoundBar(console, progress), {}
    with bar:
        for k, each in enumerate(experiments):
            label = f"[{k + 1}/{len(experiments)}] {each.dataset} {each.stream} {each.adapter}+{each.aggregator}"
            watch = partial(bar.watch, f"{label} seed {each.seed}")
            result = attempt(partial(run_one, each, cache, folder, resume=True, watch=watch))
            if isinstance(result, Missing):
                failed[each.fingerprint] = result.reason
    return failed


def _say_done(console: Console, runs: int, done: Iterator[int], experiment: Experiment, reason: str) -> None:
    """Say after every hundredth part of the runs how many are done, and of every failure why."""
    k = next(done)
    if reason or k == runs or k % max(1, runs // 100) == 0:
        console.print(f"[{k}/{runs}] {reason}".rstrip(), markup=False, highlight=False, soft_wrap=True)
