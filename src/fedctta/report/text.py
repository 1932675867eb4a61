"""Numbers as words: the same in the terminal, in Markdown, in figures and on the page."""

from __future__ import annotations

from math import isfinite

from rich.console import Console


def number(value: float, digits: int = 2) -> str:
    """Write a number with fixed digits, or a dash where it is not known."""
    return f"{value:,.{digits}f}" if isfinite(value) else "-"


def human_bytes(count: float) -> str:
    """Write a count of bytes in decimal units.

    >>> human_bytes(999), human_bytes(1_234_000)
    ('999 B', '1.23 MB')
    """
    if not isfinite(count):
        return "-"
    for power, unit in enumerate(("B", "kB", "MB", "GB")):
        rounded = float(f"{count / 1000**power:.3g}")
        if rounded < 1000:
            return f"{rounded:g} {unit}"
    return f"{count / 1000**4:.3g} TB"


def roomy(console: Console) -> Console:
    """Return the console; for one that writes to a file, one that has room for whole lines."""
    return console if console.is_terminal else Console(file=console.file, width=400)
