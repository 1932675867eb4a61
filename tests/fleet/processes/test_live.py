"""A fleet while it runs: events as lines, and on a terminal a board below them."""

from __future__ import annotations

import io
from types import SimpleNamespace

from rich.console import Console

from fedctta.fleet.processes.live import Live

NOBODY = SimpleNamespace(tended={})


def test_events_are_lines_and_a_name_is_no_markup(tmp_path):
    text, log = io.StringIO(), tmp_path / "server.log"
    with Live(Console(file=text, width=40), log) as live:
        live.show(NOBODY, {})
        log.write_text("[/x] joined (node 1, which has a name that is longer than the terminal is wide)\n")
        live.show(NOBODY, {"round": 1})
        live.tell("[bold]two")
        with log.open("a") as file:
            file.write("the last one\n")
    lines = text.getvalue().splitlines()
    assert [line[:4] for line in lines] == ["[/x]", "[bol", "the "]


def test_on_a_terminal_the_table_is_redrawn(tmp_path):
    text = io.StringIO()
    node = {"device": "cam", "node": "1", "online": True, "refused": 0, "ignored": False}
    with Live(Console(file=text, width=200, force_terminal=True), tmp_path / "server.log") as live:
        live.show(NOBODY, {"round": 1, "nodes": [node]})
        live._live.refresh()
        assert "cam" in text.getvalue()
    assert text.getvalue().endswith("\x1b[2K")  # and removed at the end
