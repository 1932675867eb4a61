"""Published tables as files: what is run, what was printed, what is refused."""

from __future__ import annotations

import re
from math import isnan
from pathlib import Path
from typing import get_args

import pytest

from fedctta.aggregators import aggregators
from fedctta.errors import UserError
from fedctta.papers.tables import By, Claim, Figure, load_paper, published

SMALL = """
title = "A table"
paper = "Somebody (2020), Table 1"
run = { dataset = "shapes-c", batch = 20 }
quick = { slots = 5 }

[[panel]]
name = "first"
run = { batch = 10 }
quick = { clients = 4 }
columns.niid = { stream = "niid", adapter = "grad", quick = { slots = 2 } }
columns.iid = { stream = "iid", adapter = "bn", quick = false }
rows."No-Adapt" = { adapter = "none" }
rows.FedProx = { aggregator = "fedavg", grad.prox = 0.5 }
published.FedProx = [61.5, [67.41, 0.27]]
"""


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return str(path)

    return write


def test_a_cell_takes_from_file_panel_column_and_row(write):
    paper = load_paper(write(SMALL))
    cells = paper.cells(paper.panels[0], quick=False, more={})
    assert list(cells) == [("No-Adapt", "niid"), ("No-Adapt", "iid"), ("FedProx", "niid"), ("FedProx", "iid")]
    cell = cells["FedProx", "niid"]
    assert (cell.dataset, cell.batch, cell.stream, cell.adapter) == ("shapes-c", 10, "niid", "grad")
    assert (cell.aggregator, cell.parameters, cell.slots) == ("fedavg", {"grad": {"prox": 0.5}}, None)
    assert cells["FedProx", "iid"].parameters == {}  # of a method that is not in the run
    assert cells["No-Adapt", "niid"].adapter == "none"


def test_quick_shortens_and_leaves_out(write):
    paper = load_paper(write(SMALL))
    cells = paper.cells(paper.panels[0], quick=True, more={})
    assert list(cells) == [("No-Adapt", "niid"), ("FedProx", "niid")]
    assert cells["FedProx", "niid"].slots == 2
    assert cells["FedProx", "niid"].clients == 4


def test_what_the_user_says_wins(write):
    paper = load_paper(write(SMALL))
    cells = paper.cells(paper.panels[0], quick=True, more={"slots": "7", "device": "cpu"})
    assert {(cell.slots, cell.device) for cell in cells.values()} == {(7, "cpu")}


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [("aggregator", "fedavg", "rows"), ("grad.prox", "1", "rows"), ("stream", "iid", "columns")],
)
def test_what_rows_or_columns_differ_in_is_not_the_users_to_say(write, key, value, what):
    paper = load_paper(write(SMALL))
    with pytest.raises(UserError, match=f"mine, first: {key} is what {what} differ in: drop it"):
        paper.cells(paper.panels[0], quick=False, more={key: value})


def test_columns_that_became_tables_differ_too(tmp_path):
    path = tmp_path / "gains.toml"
    path.write_text(GAINS.format(baseline="None"))
    paper = load_paper(str(path))
    with pytest.raises(UserError, match="batch is what columns differ in"):
        paper.cells(paper.panels[0], quick=False, more={"batch": "5"})


def test_published_numbers_have_a_mean_and_perhaps_a_spread(write):
    (panel,) = load_paper(write(SMALL.replace("[61.5,", '["-",'))).panels
    (first, second) = panel.published["FedProx"]
    assert isnan(first[0])
    assert second == (67.41, 0.27)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("title =", "titel =", "unknown key in mine.toml 'titel'.*title"),
        ('name = "first"', 'nome = "first"', "unknown key of a panel in mine.toml 'nome'.*name"),
        ("batch = 20", "bach = 20", "No-Adapt, niid: unknown key 'bach'.*batch"),
        ("grad.prox", "grad.proks", "unknown parameter of grad 'proks'.*prox"),
        ('aggregator = "fedavg"', 'aggregator = "fedavgg"', "unknown aggregator 'fedavgg'"),
        ("published.FedProx", "published.FedPox", "unknown row in published in mine.toml 'FedPox'"),
        ("[61.5,", "[", "FedProx has 1 published numbers for 2 columns"),
        ("61.5", '"many"', "published number 'many' of FedProx"),
        ("61.5", "[1, 2, 3]", "published number"),
        ("[61.5, [67.41, 0.27]]", "61.5", "must be a list"),
        ("[[panel]]", "[panel]", "there is no panel"),
        ('name = "first"', 'name = "first"\nby = "domain"', "one column"),
        ('name = "first"', 'name = "first"\nby = "colour"', "unknown by in mine.toml 'colour'"),
        ('name = "first"', 'name = "first"\nfigure = "pie"', "unknown figure in mine.toml 'pie'"),
        (
            'name = "first"',
            'name = "first"\ntext = "{FedProks | niid}"',
            "row in text of mine.toml 'FedProks'",
        ),
        ('name = "first"', 'name = "first"\ntext = "{FedProx | XID}"', "unknown column in text of mine.toml 'XID'"),
        ("columns.niid", "columns.niid.x", "unknown method 'x'|niid"),
        ('title = "A table"', 'title = "A table', "cannot read the preset"),
    ],
)
def test_a_mistake_is_told_in_one_line(old, new, told, write):
    assert old in SMALL
    with pytest.raises(UserError, match=told) as error:
        load_paper(write(SMALL.replace(old, new, 1)))
    assert "\n" not in str(error.value).replace("\\n", "")


def test_the_example_of_the_docs_is_a_table(write):
    page = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (panel,) = load_paper(write(text)).panels
    assert panel.published["Local"][1] == (64.2, 0.3)
    for choices in (By, Figure):
        names = get_args(choices)
        line = next(line for line in text.splitlines() if f'"{names[0]}"' in line)
        assert set(re.findall(r'"(\w+)"', line)) == set(names)


def test_two_panels_need_two_names(write):
    with pytest.raises(UserError, match="same name"):
        load_paper(write(SMALL + SMALL[SMALL.index("[[panel]]") :]))


def test_an_unknown_table_offers_those_there_are():
    assert published()
    with pytest.raises(UserError, match=r"unknown published table or figure 'fedctta-table9'.*fedctta-table1"):
        load_paper("fedctta-table9")
    with pytest.raises(UserError, match="there is no preset file"):
        load_paper("nowhere.toml")


@pytest.mark.parametrize("name", published())
def test_texts_name_cells_that_exist(name):
    for panel in load_paper(name).panels:
        for place in re.findall(r"\{([^{}]+)\}", panel.text):
            row, _, column = (" ".join(part.split()) for part in place.partition("|"))
            assert (row in panel.rows and column in panel.columns) or place in ("sh", "th")


def test_a_sum_is_a_number_that_is_not_printed(write):
    (panel,) = load_paper(write(SMALL.replace("[61.5,", '["64.5 + 5.3",'))).panels
    assert panel.published["FedProx"][0][0] == 69.8
    assert panel.derived == {"FedProx": {0: "64.5 + 5.3"}}
    (panel,) = load_paper(write(SMALL.replace("[61.5,", '["64.5 - 5.3 - 1",'))).panels
    assert panel.published["FedProx"][0][0] == 58.2
    assert load_paper(write(SMALL)).panels[0].derived == {"FedProx": {}}


def test_a_value_may_be_the_number_of_slots(write):
    rows = 'rows.FedAvgM = { aggregator = "fedavgm", fedavgm.restart = "slots" }'
    text = f"run = {{ slots = 10 }}\nquick = {{ slots = 5 }}\n[[panel]]\ncolumns.niid = {{}}\n{rows}\n"
    paper = load_paper(write(text))

    def restart(quick, **more):
        cell = paper.cells(paper.panels[0], quick, more)["FedAvgM", "niid"]
        return cell.method(aggregators, "fedavgm").restart

    assert [restart(False), restart(True), restart(False, slots="50")] == [10, 5, 50]
    with pytest.raises(UserError, match=r'fedavgm.restart = "slots" needs slots'):
        load_paper(write(text.replace("run = { slots = 10 }", "")))


GAINS = """
[[panel]]
name = "Batch 10"
by = "domain"
baseline = "{baseline}"
columns.photo = {{ batch = 10 }}
columns.sketch = {{ batch = 20 }}
rows.None = {{ adapter = "none" }}
"""


def test_a_panel_by_domain_is_one_table_per_column(tmp_path):
    path = tmp_path / "gains.toml"
    path.write_text(GAINS.format(baseline="None"))
    one, two = load_paper(str(path)).panels
    assert (one.name, two.name, two.group, two.baseline) == ("Batch 10, photo", "Batch 10, sketch", "Batch 10", "None")
    assert list(two.columns) == ["sketch"]


def test_a_baseline_is_a_row(tmp_path):
    path = tmp_path / "gains.toml"
    path.write_text(GAINS.format(baseline="Nobody"))
    with pytest.raises(UserError, match="unknown baseline"):
        load_paper(str(path))


def test_a_ranking_names_presets_that_are_there(tmp_path):
    path = tmp_path / "ranks.toml"
    path.write_text('presets = ["natural-pacs"]')
    assert load_paper(str(path)).presets == ("natural-pacs",)
    path.write_text('presets = ["natural-moon"]')
    with pytest.raises(UserError, match="unknown preset"):
        load_paper(str(path))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("seeds = 0", "seeds = 0 must be a whole number from 1 on"),
        ("seeds = true", "must be a whole number"),
        ('claim = [{ holds = "yes" }]', "a claim needs the paper's words"),
        ('claim = [{ says = "x", holds = "perhaps" }]', "unknown holds of a claim"),
        ('claim = [{ says = "x", holds = "yes", because = "y" }]', "unknown key of a claim"),
        ('claim = ["x"]', "claim must be a table of texts"),
    ],
)
def test_a_mistake_in_seeds_or_claims_is_told(tmp_path, line, told):
    place = tmp_path / "mine.toml"
    place.write_text(f"{line}\n[[panel]]\ncolumns.c = {{}}\nrows.r = {{}}\n")
    with pytest.raises(UserError, match=told):
        load_paper(str(place))


def test_a_panel_may_have_seeds_of_its_own_and_a_page_its_place(tmp_path):
    place = tmp_path / "mine.toml"
    grid = "columns.c = {}\nrows.r = {}\n"
    panels = f"[[panel]]\nname = 'a'\n{grid}[[panel]]\nname = 'b'\nseeds = 1\n{grid}"
    place.write_text(f'seeds = 4\nclaim = [{{ says = "we  win", holds = "no" }}]\n{panels}')
    paper = load_paper(str(place))
    assert [panel.seeds for panel in paper.panels] == [4, 1]
    assert (paper.page, paper.claims) == ("mine.md", (Claim("we win", "no"),))


def test_a_table_by_class_shows_accuracies(tmp_path):
    place = tmp_path / "mine.toml"
    place.write_text('[[panel]]\nby = "class"\nmetric = "major"\ncolumns.c = {}\nrows.r = {}\n')
    with pytest.raises(UserError, match='by = "class" shows accuracies'):
        load_paper(str(place))
