"""A fleet's status as the server writes it, and as a table for people."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from fedctta.fleet.processes.supervisor import Supervisor


def read_status(state: Path) -> dict[str, Any]:
    """Return what the server last wrote of itself; nothing if it has not yet."""
    try:
        content = json.loads((state / "status.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def board(status: dict[str, Any], supervisor: Supervisor | None = None) -> Group:
    """Return the server's line, its devices, and the processes on this machine if they are ours."""
    pieces: list[Any] = [Text(headline(status))]
    if status.get("nodes"):
        table = _table("device", "node", "online", "last round", "refused", "answers", "alarms", "estimated", "source")
        for node in status["nodes"]:
            there = "yes" if node["online"] else "no answer" if node.get("silence") else "no"
            state = "in quarantine" if node["ignored"] else there
            last = "?" if node.get("last_round") is None else str(node["last_round"])
            health = node.get("health", {})
            told = (health.get("answers", "?"), str(health.get("alarms", "?")))
            estimates = (percent(health.get(key)) for key in ("accuracy", "source_accuracy"))
            row = (node["device"], node["node"], state, last, str(node["refused"]), *told, *estimates)
            table.add_row(*(Text(str(cell)) for cell in row))  # what a device says is no markup
        pieces.append(table)
    if supervisor is not None:
        table = _table("part", "pid", "state", "restarts", "MB")
        for name, tended in supervisor.tended.items():
            megabytes = f"{supervisor.memory(name) / 2**20:.0f}"
            table.add_row(name, str(tended.process.pid), tended.state, str(tended.deaths), megabytes)
        pieces.append(table)
    return Group(*pieces)


def headline(status: dict[str, Any]) -> str:
    """Return the server's status on one line.

    >>> headline({})
    'the server has not spoken yet'
    """
    if not status:
        return "the server has not spoken yet"
    age = max(0.0, time.time() - float(status.get("written", 0)))
    why = f" ({status['why']})" if status.get("why") else ""
    silent = f", silent for {age:.0f} s" if age > 10 and status.get("doing") != "finished" else ""
    up, down = (int(status.get(key, 0)) / 1024 for key in ("bytes_up", "bytes_down"))
    empty = f", {status['empty_rounds']} empty" if status.get("empty_rounds") else ""
    return (
        f"round {status.get('round', 0)} of {status.get('rounds', '?')}: {status.get('doing', '?')}{why}{silent};"
        f" last round {status.get('seconds_of_round', 0):.1f} s; {up:.0f} KB up, {down:.0f} KB down;"
        f" {status.get('refused', 0)} refused{empty}"
    )


def percent(share: float | None) -> str:
    """Return a share in whole percent.

    >>> percent(0.614), percent(None)
    ('61 %', '?')
    """
    return "?" if share is None else f"{100 * share:.0f} %"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, style="bold" if column == columns[0] else "")
    return table
