"""A list is printed whole."""

from __future__ import annotations

import io

from rich.console import Console

from fedctta.cli import console


def test_a_list_has_a_title_and_a_line_a_row(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(console, "out", Console(file=shown, width=60))
    console.print_list("fruit", [("apple", "grows on trees", "ripe"), ("fig", "likes the sun", "")])
    title, *lines = [line.split() for line in shown.getvalue().splitlines() if line.strip()]
    assert title == ["fruit"]
    assert lines == [["apple", "grows", "on", "trees", "ripe"], ["fig", "likes", "the", "sun"]]


def test_names_in_square_brackets_are_printed_as_they_are():
    with console.out.capture() as shown:
        console.print_list("[bold]", [("[red]", "[batch, 3, height, width]", "[/]")])
        console.out.print("note: [red]dom :cat:", soft_wrap=True)
    for name in ("[bold]", "[red]", "[batch, 3, height, width]", "[/]", "note: [red]dom :cat:"):
        assert name in shown.get()
