"""A fleet while it runs: one line per event, and on a terminal a board below them that is redrawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import live
from rich.console import Console
from rich.text import Text

from fedctta.fleet.processes.events import Follower, Restarts

if TYPE_CHECKING:
    from fedctta.fleet.processes.supervisor import Supervisor


class Live:
    """Shows what the server logs and how things stand, for the length of a `with` block."""

    def __init__(self, console: Console, log: Path) -> None:
        self._console, self._log, self._restarts = console, Follower(log), Restarts()
        terminal = console.is_terminal
        self._live = live.Live(console=console, refresh_per_second=2, transient=True) if terminal else None

    def __enter__(self) -> Live:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._tell_log()
        if self._live is not None:
            self._live.stop()

    def show(self, supervisor: Supervisor, status: dict[str, Any]) -> None:
        """Tell what has happened, and show how things stand now."""
        from fedctta.fleet.server.status_table import board

        self._tell_log()
        for line in self._restarts.look(supervisor):
            self.tell(line)
        if self._live is not None:
            self._live.update(board(status, supervisor))

    def tell(self, line: str) -> None:
        """Print one event."""
        self._console.print(Text(line), soft_wrap=True)

    def _tell_log(self) -> None:
        for line in self._log.lines():
            self.tell(line)
