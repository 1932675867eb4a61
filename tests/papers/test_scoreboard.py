"""The scoreboard has every preset once, and says of each page how it stands."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from fedctta.errors import UserError
from fedctta.papers import scoreboard
from fedctta.papers.campaign import plan_all, play_all
from fedctta.papers.pages import make_pages
from fedctta.papers.pool import pack
from fedctta.papers.scoreboard import BEGIN, END, Item, Standing, find_standing, write_scoreboard
from fedctta.papers.tables import load_paper, published
from fedctta.results.packed import read_packed


def test_the_catalogue_has_every_preset_once():
    items = [item for items in scoreboard.read_catalogue().values() for item in items]
    assert sorted(item.preset for item in items if item.preset) == sorted(published())
    assert all(bool(item.preset) != bool(item.none) for item in items)


@pytest.fixture
def two(presets, monkeypatch):
    items = [Item("Table 1", "one"), Item("Table 2", "two"), Item("Figure 1", none="a drawing")]
    monkeypatch.setattr(scoreboard, "read_catalogue", lambda: {"A paper": items})


def test_what_a_page_without_records_says_of_itself(two, tmp_path):
    (tmp_path / "one.md").write_text(
        'Command: `fedctta reproduce one --panel "means" --quick`. On x: 3 runs, seeds 0, 9 seconds.'
    )
    found = find_standing(tmp_path, load_paper("one"), None)
    assert found == Standing("1", "the whole protocol (--quick); who (no runs); seeds (1 of 2)", records=False)
    (tmp_path / "one.md").write_text(
        "Command: `fedctta reproduce one`. On x: 3 runs, seeds 0, 1, 2, 1,834 seconds in all"
    )
    assert find_standing(tmp_path, load_paper("one"), None) == Standing("3", "", records=False)
    (tmp_path / "one.md").write_text("# T\n\n**Missing: the whole protocol (--quick: 1 slot); who.** Printed.\n")
    assert find_standing(tmp_path, load_paper("one"), None).lacks == "the whole protocol (--quick); who"
    assert find_standing(tmp_path, load_paper("two"), None) is None


def test_the_table_is_written_between_its_marks(two, tmp_path):
    play_all(plan_all(seeds=1), Path("pool"), 1, Console(stderr=True))
    pack(Path("pool"), Path("records.parquet"))
    place = tmp_path / "README.md"
    place.write_text(f"# Mine\n\n{BEGIN}\nformer\n{END}\n\nMore.\n")
    write_scoreboard(tmp_path, make_pages(read_packed(Path("records.parquet"))))
    text = place.read_text()
    assert text.startswith("# Mine\n")
    assert text.endswith("More.\n")
    assert "former" not in text
    protocol = "shapes-c (resnet8-w16); 2 clients, batches of 5, 2 per domain"
    assert f"| [Table 1](one.md) | {protocol} | 1 | seeds (1 of 2 in 2 of 3 cells) | yes | 1 does not hold |" in text
    assert f"| [Table 2](two.md) | {protocol} | 1 | nothing | yes | - |" in text
    assert "| Figure 1 | a drawing | - | - | - | - |" in text
    assert "**Table 1**\n\n- *FedAvg is best.*" in text


def test_a_readme_without_marks_is_refused(two, tmp_path):
    (tmp_path / "README.md").write_text("# Mine\n")
    with pytest.raises(UserError, match="no place for the scoreboard"):
        write_scoreboard(tmp_path, {})
    assert (tmp_path / "README.md").read_text() == "# Mine\n"
