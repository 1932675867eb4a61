"""Telling the user what is happening while data is fetched or made: a line, or a bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


def say(line: str, progress: bool | None = None) -> None:
    """Print one line about what is happening to standard error, unless `progress` is False."""
    if progress is not False:
        Console(stderr=True).print(line, soft_wrap=True, markup=False, highlight=False)


@contextmanager
def bar(label: str, total: float | None, progress: bool | None = None) -> Iterator[Callable[[float], None]]:
    """Show a progress bar while the block runs and give the function that advances it.

    Args:
        label: what is being done.
        total: how much there is to do; None shows a spinner.
        progress: False for no bar, True for one always, None for one where standard error is a terminal.
    """
    console = Console(stderr=True, force_terminal=progress or None)
    hidden = progress is False or (progress is None and not console.is_terminal)
    done = TextColumn("{task.percentage:>3.0f} %" if total else "")
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), done, TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=hidden) as shown:
        task = shown.add_task(label, total=total)
        yield lambda amount: shown.advance(task, amount)
