"""Play the cells of a table, or find them among those kept: by fingerprint, a digest or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from fedctta.errors import UserError
from fedctta.papers.missing import NOT_RUN, Lacking, Missing
from fedctta.report.weights import depict
from fedctta.results.digests import Digest, digest
from fedctta.results.packed import NAME, read_packed
from fedctta.results.records import Record
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


def find_packed(experiments: Sequence[Experiment], folder: Path) -> Found:
    """Return what the folder's file of records has of them."""
    packed = read_packed(folder / NAME)
    keys = {experiment.fingerprint: experiment.anywhere.fingerprint for experiment in experiments}
    return {fingerprint: packed[key] for fingerprint, key in keys.items() if key in packed}


def attempt(play: Callable[[], Record | None]) -> Digest | Missing:
    """Return the digest of a cell, or why there is none; one that fails must not keep the others from running."""
    try:
        record = play()
        return digest(record, depict(record)) if record is not None else Missing(NOT_RUN)
    except UserError as error:
        return Missing(str(error))
    except (RuntimeError, ValueError, ArithmeticError) as error:  # out of memory, a method's own mistake
        return Missing(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
