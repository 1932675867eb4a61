from __future__ import annotations

import doctest
from html.parser import HTMLParser

import pytest

from fedctta.report import reproduction
from fedctta.report.comparison import Comparison, Entry, Line
from fedctta.report.reproduction import Story, paragraphs, write_reproduction

STORY = Story("fedctta-table1", "Table <I>", "FedCTTA (2025)", "A **note** with `code`.", "fedctta reproduce x", False)


@pytest.fixture
def tables(fake):
    run = fake(hardware="a machine", torch="2.13")
    first = Comparison(
        "CIFAR-10-C, bn", ("NIID",), (Line("FedAvg", (Entry((60.0,), 61.0),)),), runs={("FedAvg", "NIID"): (run,)}
    )
    missing = Entry(reason="not available: no network")
    second = Comparison("CIFAR-100-C", ("NIID",), (Line("FedAvg", (missing,)),), text="a & {FedAvg | NIID}")
    return [first, second]


def test_doctests():
    assert doctest.testmod(reproduction).failed == 0


def test_the_folder_holds_page_markdown_numbers_and_figures(tables, tmp_path):
    page = write_reproduction(STORY, tables, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "fedctta-table1-cifar-10-c-bn.png",
        "fedctta-table1.csv",
        "fedctta-table1.md",
        "report.html",
    ]
    assert page.name == "report.html"


def test_the_markdown_tells_how_where_and_how_long(tables, tmp_path):
    write_reproduction(STORY, tables, tmp_path)
    text = (tmp_path / "fedctta-table1.md").read_text()
    assert "`fedctta reproduce x`" in text
    assert "on a machine with torch 2.13: 1 runs of 30 rounds, seeds 0, 14 seconds" in text  # 12.5 + 2 * 0.5
    assert "| FedAvg | 60.00 | 61.00 (-1.00) |" in text
    assert "FedAvg, NIID: not available: no network" in text
    assert "(fedctta-table1-cifar-10-c-bn.png)" in text
    assert text.rstrip().endswith("A **note** with `code`.")


def test_the_page_needs_nothing_else_and_escapes_words(tables, tmp_path):
    text = write_reproduction(STORY, tables, tmp_path).read_text()
    assert "Table &lt;I&gt;" in text
    assert "a &amp; -" in text
    assert "<strong>note</strong> with <code>code</code>" in text

    class Sources(HTMLParser):
        found: list[str] = []

        def handle_starttag(self, tag, attrs):
            self.found += [value for name, value in attrs if name in ("src", "href")]

    reader = Sources()
    reader.feed(text)
    assert len(reader.found) == 1
    assert reader.found[0].startswith("data:image/png;base64,")


def test_paragraphs_break_at_empty_lines():
    assert paragraphs("one\ntwo\n\n*three*") == "<p>one two</p><p><em>three</em></p>"
    assert paragraphs("- one\n  more\n- `two`") == "<ul><li>one more</li><li><code>two</code></li></ul>"


def test_nothing_run_is_told(tables, tmp_path):
    write_reproduction(STORY, tables[1:], tmp_path)
    assert "Nothing could be run" in (tmp_path / "fedctta-table1.md").read_text()
