"""Where commands print, and how they print a list."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

# Names must stay as they are: rich would take :x: for a picture, and [x] for a style.
out = Console(emoji=False, markup=False)
err = Console(stderr=True, emoji=False, markup=False)


def print_list(title: str, rows: list[tuple[str, str, str]]) -> None:
    """Print rows of a name, a line about it and a remark."""
    table = Table(title=title, title_justify="left", box=None, show_header=False, pad_edge=False)
    for style in ("bold", "", "dim"):
        table.add_column(style=style)
    for row in rows:
        table.add_row(*row)
    out.print(table)
    out.print()
