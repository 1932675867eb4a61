"""The live line of a run: round, running accuracy, images per second."""

from __future__ import annotations

from math import isnan
from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fedctta.engine.tally import Tally


class RoundBar:
    """A progress bar over the rounds of several runs. Use as a context manager; call `watch` for each run."""

    def __init__(self, console: Console, enabled: bool = True) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("round {task.completed:.0f}/{task.total:.0f}  {task.fields[news]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not (enabled and console.is_terminal),
            transient=True,
        )

    def __enter__(self) -> RoundBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def watch(self, label: str, rounds: int) -> _Watcher:
        """Return the callback for one run."""
        return _Watcher(self._bar, label, rounds)


class _Watcher:
    """Called after every round; looks at the device only a few times a second, because looking waits for it."""

    def __init__(self, bar: Progress, label: str, rounds: int) -> None:
        self._bar = bar
        self._task = bar.add_task(label, total=rounds, news="")
        self._began = self._looked = perf_counter()
        self._first: int | None = None
        self._rounds = rounds

    def __call__(self, t: int, tally: Tally) -> None:
        now = perf_counter()
        self._first = t if self._first is None else self._first
        done = t + 1 == self._rounds
        if now - self._looked < 0.25 and not done:
            return
        self._looked = now
        accuracy = tally.accuracy(t + 1)
        images = int(tally.seen()[self._first : t + 1].sum())
        right = "" if isnan(accuracy) else f"accuracy {100 * accuracy:.2f} %  "
        news = f"{right}{images / (now - self._began):,.0f} images/s"
        self._bar.update(self._task, completed=t + 1, news=news)
        if done:
            self._bar.remove_task(self._task)
