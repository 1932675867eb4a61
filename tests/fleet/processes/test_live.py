"""A fleet's status while it runs: where there is no terminal, one line per round."""

from __future__ import annotations

import io

from rich.console import Console

from fedctta.fleet.processes.live import Live


def test_without_a_terminal_a_round_is_told_once():
    text = io.StringIO()
    with Live(Console(file=text, width=200)) as live:
        for status in ({}, {"round": 1}, {"round": 1, "refused": 3}, {"round": 2}):
            live.show(None, status)
    assert [line.split(" of")[0] for line in text.getvalue().splitlines()] == ["round 1", "round 2"]


def test_on_a_terminal_the_table_is_redrawn():
    text = io.StringIO()
    node = {"device": "cam", "node": "1", "online": True, "refused": 0, "ignored": False}
    with Live(Console(file=text, width=200, force_terminal=True)) as live:
        live.show(None, {"round": 1, "nodes": [node]})
        live._live.refresh()
        assert "cam" in text.getvalue()
    assert text.getvalue().endswith("\x1b[2K")  # and removed at the end
