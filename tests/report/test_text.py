from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedctta.report.text import html_table, human_bytes, number, roomy


@pytest.mark.parametrize(
    ("count", "text"),
    [
        *((0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_600, "1 MB"), (1_234_000, "1.23 MB")),
        *((5e9, "5 GB"), (2.5e15, "2.5e+03 TB"), (float("nan"), "-")),
    ],
)
def test_human_bytes(count: float, text: str) -> None:
    assert human_bytes(count) == text


def test_number() -> None:
    assert (number(1234.567), number(0.5, 0), number(float("nan"))) == ("1,234.57", "0", "-")


def test_a_file_has_room_for_whole_lines():
    assert roomy(Console(file=io.StringIO(), width=20)).width == 400
    terminal = Console(file=io.StringIO(), width=20, force_terminal=True)
    assert roomy(terminal) is terminal


def test_a_table_of_the_page_has_words_then_numbers():
    table = html_table(["a<b", "n"], [["x", "1"]], words=1)
    assert '<th scope="col">a&lt;b</th><th scope="col" class="n">n</th>' in table
    assert '<tr><td>x</td><td class="n">1</td></tr>' in table
