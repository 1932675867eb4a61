"""A fleet's status while it runs: redrawn on a terminal, one line per round elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import live
from rich.console import Console

if TYPE_CHECKING:
    from fedctta.fleet.processes.supervisor import Supervisor


class Live:
    """Shows the board for the length of a `with` block."""

    def __init__(self, console: Console) -> None:
        self._console, self._last = console, None
        terminal = console.is_terminal
        self._live = live.Live(console=console, refresh_per_second=2, transient=True) if terminal else None

    def __enter__(self) -> Live:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *reason: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, supervisor: Supervisor, status: dict[str, Any]) -> None:
        """Show how things stand now."""
        from fedctta.fleet.server.status_table import board, headline

        if self._live is not None:
            self._live.update(board(status, supervisor))
        elif (now := status.get("round")) != self._last:
            self._last = now
            self._console.print(headline(status), soft_wrap=True)
