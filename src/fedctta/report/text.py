"""Numbers as words, the same in the terminal, in Markdown, in figures and on the page; and plain tables of the page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
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
    return console if console.is_terminal else Console(file=console.file, width=400, emoji=False, markup=False)


def html_table(head: Sequence[str], lines: Sequence[Sequence[str]], words: int) -> str:
    """Make a table: the first `words` columns text, the others numbers; cells are already escaped."""
    kinds = ["" if k < words else ' class="n"' for k in range(len(head))]
    top = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in zip(head, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{text}</td>" for text, kind in zip(line, kinds, strict=True)) + "</tr>"
        for line in lines
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
