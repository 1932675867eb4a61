from __future__ import annotations

import doctest
from dataclasses import replace
from html.parser import HTMLParser
from math import nan

import pytest

from fedctta.report import reproduction
from fedctta.report.comparison import Comparison, Entry, Line, csv_of
from fedctta.report.reproduction import Story, markdown, paragraphs, write_reproduction
from fedctta.results.digests import digest

STORY = Story("fedctta-table1", "Table <I>", "FedCTTA (2025)", "A **note** with `code`.", "fedctta reproduce x")


@pytest.fixture
def tables(fake):
    run = digest(fake(hardware="a machine", torch="2.13"))
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


def test_what_ends_below_doing_nothing_is_said_on_both_pages(tables, tmp_path, monkeypatch):
    monkeypatch.setattr(Comparison, "warnings", lambda table: ["FedAvg is 2.9 points below doing nothing."])
    page = write_reproduction(STORY, tables, tmp_path).read_text(encoding="utf-8")
    assert '<p class="note harm">FedAvg is 2.9 points below doing nothing.</p>' in page
    assert "FedAvg is 2.9 points below doing nothing." in markdown(STORY, tables, {})


def test_the_markdown_tells_how_where_and_how_long(tables, tmp_path):
    write_reproduction(STORY, tables, tmp_path)
    text = (tmp_path / "fedctta-table1.md").read_text()
    assert "`fedctta reproduce x`" in text
    assert "on a machine with torch 2.13: 1 runs of 30 rounds, seeds 0, 14 seconds" in text  # 12.5 + 2 * 0.5
    assert "| FedAvg | 60.00 | 61.00 (-1.00) |" in text
    assert "FedAvg: not available: no network" in text
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
    assert paragraphs("why ([audit](../audit.md#a)), [0, 1] (*x*)") == "<p>why (audit), [0, 1] (<em>x</em>)</p>"
    assert paragraphs("- one\n  more\n- `two`") == "<ul><li>one more</li><li><code>two</code></li></ul>"


def page(tables, **words):
    return markdown(replace(STORY, **words), tables, {})


def one(fake, entry, **words):
    run = digest(fake(**words.pop("settings", {})))
    return Comparison("one", ("NIID",), (Line("FedAvg", (entry,)),), runs={("FedAvg", "NIID"): (run,)}, **words)


def test_quick_speaks_of_printed_numbers_only_where_there_are_some(fake):
    told = "**Missing: the whole protocol (--quick: 1 slot per domain instead of 5).**"
    quick = "1 slot per domain instead of 5"
    assert f"{told} Printed numbers are" in page([one(fake, Entry((60.0,), 61.0))], quick=quick)
    assert f"{told}\n" in page([one(fake, Entry((60.0,)))], quick=quick)


@pytest.mark.parametrize(
    ("metrics", "paper", "told"),
    [
        (
            ["accuracy"],
            61.0,
            "Accuracy in percent; in brackets ours less the paper's, in points; bold is the best of a",
        ),
        (["accuracy"], nan, "Accuracy in percent; bold is the best of a column."),
        (["mean_class_accuracy"], nan, "Mean class accuracy in percent; bold"),
        (["miou", "dice"], nan, "mIoU and Dice in percent; bold"),
        (["accuracy", "seconds"], 4.5, "Accuracy in percent; in brackets ours less the paper's; bold"),
        (["seconds"], nan, "\nBold is the best of a column."),
    ],
)
def test_the_legend_is_of_what_the_tables_count(fake, metrics, paper, told):
    assert told in page([one(fake, Entry((60.0,), paper), metric=metric) for metric in metrics])


def test_a_derived_number_is_shown_as_one(fake):
    told = "Where a sum stands for the paper's number, it is not printed but follows from numbers that are."
    table = one(fake, Entry((74.15,), 69.8, derived="64.5 + 5.3"))
    text = page([table])
    assert "| FedAvg | 74.15 | 64.5 + 5.3 = 69.80 (+4.35) |" in text
    assert told in text
    assert csv_of([table]).splitlines()[1].endswith(",64.5 + 5.3")
    assert told not in page([one(fake, Entry((74.15,), 69.8))])


def test_a_text_may_tell_the_heterogeneity_that_was_run(fake):
    text = "TH = {th} and SH = {sh}."
    assert "TH = 0.2 and SH = 0.25." in page([one(fake, Entry((60.0,)), text=text, settings={"th": 0.2, "sh": 0.25})])
    nothing = Comparison("one", ("NIID",), (Line("FedAvg", (Entry(),)),), text=text)
    assert "TH = - and SH = -." in page([nothing])


def test_heterogeneities_that_read_alike_are_told_once(fake):
    table = one(fake, Entry((60.0, 61.0)), text="TH = {th}.", settings={"th": 0.02})
    (run,) = table.runs["FedAvg", "NIID"]
    other = replace(run, settings={**run.settings, "th": 0.020000001})
    assert "TH = 0.02." in page([replace(table, runs={("FedAvg", "NIID"): (run, other)})])


def test_what_is_missing_is_the_first_line(fake):
    table = one(fake, Entry((60.0,), 61.0))
    lines = page([table], quick="1 slot", missing=("CIFAR-100-C (no runs)", "2 of 9 cells")).splitlines()
    told = "**Missing: the whole protocol (--quick: 1 slot); CIFAR-100-C (no runs); 2 of 9 cells.**"
    assert lines[:3] == ["# Table <I>", "", f"{told} Printed numbers are of the whole protocol."]
    assert "Missing" not in page([table])


def test_a_page_is_dated_by_its_runs(fake):
    table = one(fake, Entry((60.0,), 61.0))
    (run,) = table.runs["FedAvg", "NIID"]
    made = [replace(run, origin={"made": f"2026-11-{day}T10:00:00+00:00"}) for day in (17, 15)]
    assert "Made on 2026-11-15 to 2026-11-17 on" in page([replace(table, runs={("FedAvg", "NIID"): tuple(made)})])
    assert "Made on 2026-11-17 on" in page([replace(table, runs={("FedAvg", "NIID"): (made[0],)})])


def test_a_note_says_of_how_many_runs_it_is(fake):
    table = one(fake, Entry((60.0,), 61.0))
    (run,) = table.runs["FedAvg", "NIID"]
    told = [replace(run, settings={**run.settings, "notes": notes}) for notes in (["alike"], ["alike", "other images"])]
    lines = page([replace(table, runs={("FedAvg", "NIID"): tuple(told)})]).splitlines()
    assert "alike" in lines
    assert "other images (1 of 2 runs)" in lines


def test_claims_stand_between_tables_and_notes(fake):
    text = page([one(fake, Entry((60.0,)))], claims="- *We win.* **Holds.**")
    assert text.index("| FedAvg |") < text.index("## Claims\n\n- *We win.*") < text.index("## Notes\n\nA **note**")
    assert "## Notes" not in page([one(fake, Entry((60.0,)))])


def test_nothing_run_is_told(tables, tmp_path):
    write_reproduction(STORY, tables[1:], tmp_path)
    assert "Nothing could be run" in (tmp_path / "fedctta-table1.md").read_text()
