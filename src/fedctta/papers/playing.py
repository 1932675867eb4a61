"""Play the cells of a table, or find them among those kept: by fingerprint, a digest or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedctta.errors import UserError
from fedctta.models.source import Source
from fedctta.papers.missing import NOT_RUN, Lacking, Missing
from fedctta.report.weights import depict
from fedctta.results.digests import Digest, digest
from fedctta.results.packed import NAME, read_packed
from fedctta.results.records import Record, to_json
from fedctta.runs.build import choose_methods, describe_parameters
from fedctta.runs.cache import Cache
from fedctta.runs.jobs import side_by_side
from fedctta.runs.progress import RoundBar
from fedctta.runs.settings import Experiment
from fedctta.runs.trial import kept, run_one

Found = Mapping[str, Digest | Missing]


def play_cells(
    experiments: Sequence[Experiment], cache: Cache, lacking: Lacking, folder: Path, jobs: int, bar: RoundBar
) -> Found:
    """Run what is not kept in the folder yet, `jobs` at once, and return all."""
    failed = {}
    if jobs != 1:
        there = [experiment for experiment in experiments if not lacking.reason(experiment, cache)]
        failed = side_by_side(there, folder, jobs, resume=True)
    found: dict[str, Digest | Missing] = {fingerprint: Missing(reason) for fingerprint, reason in failed.items()}
    with bar:
        for k, experiment in enumerate(experiments):
            label = f"[{k + 1}/{len(experiments)}] {experiment.dataset} {experiment.stream}"
            watch = partial(bar.watch, f"{label} {experiment.adapter}+{experiment.aggregator} seed {experiment.seed}")
            play = partial(run_one, experiment, cache, folder, resume=True, watch=watch)
            if experiment.fingerprint not in found:
                found[experiment.fingerprint] = lacking.missing(experiment, cache) or attempt(play)
    return found


def find_cells(experiments: Sequence[Experiment], cache: Cache, lacking: Lacking, folder: Path) -> Found:
    """Run nothing: return what is kept in the folder."""
    return {
        experiment.fingerprint: lacking.missing(experiment, cache) or attempt(partial(kept, experiment, cache, folder))
        for experiment in experiments
    }


def find_packed(experiments: Sequence[Experiment], folder: Path) -> dict[str, Digest]:
    """Return what the folder's file of records has of them."""
    packed = read_packed(folder / NAME)
    keys = {experiment.fingerprint: experiment.anywhere.fingerprint for experiment in experiments}
    return {fingerprint: packed[key] for fingerprint, key in keys.items() if key in packed}


def find_current(experiments: Sequence[Experiment], folder: Path, cache: Cache) -> dict[str, Digest]:
    """Return what the folder's file of records has of them that is of today."""
    packed = find_packed(experiments, folder)
    there = [(each, packed[each.fingerprint]) for each in experiments if each.fingerprint in packed]
    return {each.fingerprint: run for each, run in there if is_current(each, run.settings, cache)}


def is_current(experiment: Experiment, settings: Mapping[str, Any], cache: Cache) -> bool:
    """Whether a run with these settings has today's parameters and the weights that are on this machine: cards tell.

    A default may have changed since. Where the weights are not on this machine, what is there counts; where they were
    trained again, on another day, to the same accuracy by the same recipe, they are the same.
    """
    now = to_json(describe_parameters(choose_methods(experiment)))
    if now != {name: to_json(settings.get(name)) for name in now}:
        return False
    try:
        source: Source = cache.source(experiment, str(settings["model"]))
    except UserError:
        return True
    return _without_date(source.told()) == _without_date(settings.get("source", {}))


def _without_date(source: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in source.items() if key != "date"}


def attempt(play: Callable[[], Record | None]) -> Digest | Missing:
    """Return the digest of a cell, or why there is none; one that fails must not keep the others from running."""
    try:
        record = play()
        return digest(record, depict(record)) if record is not None else Missing(NOT_RUN)
    except UserError as error:
        return Missing(str(error))
    except (RuntimeError, ValueError, ArithmeticError) as error:  # out of memory, a method's own mistake
        return Missing(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
