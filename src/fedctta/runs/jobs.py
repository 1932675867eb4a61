"""Several experiments, or trainings, at once, each in its own process, which writes its result to a folder.

One run leaves much of a machine idle: a GPU waits between the small kernels of a few clients, and threads of a CPU wait
for each other at every layer. Processes share only the folder.

On a CPU the processes divide the cores among them as threads, and torch splits large sums among threads: with another
number of `jobs` the last digits of a run may differ. Runs with the same number of threads are equal bit by bit.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar

import torch

from fedctta.errors import UserError
from fedctta.files import exit_when_terminated
from fedctta.machine import keep_freed_memory
from fedctta.runs.cache import Cache
from fedctta.runs.settings import Experiment
from fedctta.runs.trial import run_one

STOPPED = "stopped"


Item = TypeVar("Item")


def side_by_side(
    experiments: Sequence[Experiment],
    folder: Path,
    jobs: int,
    resume: bool,
    on_done: Callable[[Experiment, str], None] = lambda experiment, reason: None,
) -> dict[str, str]:
    """Play experiments, `jobs` at a time, into `folder`; return by fingerprint why those failed that did."""
    reasons = work_at_once(partial(_play, folder=folder, resume=resume), experiments, jobs, on_done)
    return {each.fingerprint: reason for each, reason in zip(experiments, reasons, strict=True) if reason}


def work_at_once(
    work: Callable[[Item], None],
    items: Sequence[Item],
    jobs: int,
    on_done: Callable[[Item, str], None] = lambda item, reason: None,
) -> list[str]:
    """Do the work for every item, `jobs` at a time; return for each why it failed, or nothing."""
    if jobs < 1:
        raise UserError(f"--jobs {jobs} must be at least 1")
    threads = max(1, (os.cpu_count() or 1) // jobs)
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _prepare, (threads,))
    try:
        futures = {pool.submit(_attempt, work, item): item for item in items}
        for future in as_completed(futures):
            reason = future.result()
            if reason == STOPPED:
                raise KeyboardInterrupt
            on_done(futures[future], reason)
        return [future.result() for future in futures]
    except SystemExit:  # told to end (see `exit_when_terminated`), which nobody else tells the processes
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    except BrokenProcessPool:
        raise UserError("a process of --jobs was ended from outside (out of memory?): use fewer --jobs") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _prepare(threads: int) -> None:
    exit_when_terminated()
    keep_freed_memory()
    torch.set_num_threads(threads)


@lru_cache(maxsize=1)
def _cache() -> Cache:
    return Cache()


def _play(experiment: Experiment, folder: Path, resume: bool) -> None:
    """Play one experiment and keep its record."""
    run_one(experiment, _cache(), folder, resume, lambda rounds: lambda t, tally: None)


def _attempt(work: Callable[[Item], None], item: Item) -> str:
    """Do the work for one item; return why that was not possible, or nothing."""
    try:
        work(item)
    except KeyboardInterrupt:
        return STOPPED
    except SystemExit as ending:  # the pool would take it for a result, and begin the next item
        os._exit(ending.code if isinstance(ending.code, int) else 1)
    except UserError as error:
        return str(error)
    except (RuntimeError, ValueError, ArithmeticError) as error:  # out of memory, a method's own mistake
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return ""
