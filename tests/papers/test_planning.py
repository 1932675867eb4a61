"""Panels, seeds and shards: which experiments are run."""

from __future__ import annotations

import pytest

from fedctta.errors import UserError
from fedctta.papers.planning import add_seeds, choose_panels, make_plan, name_panels, require_as_many, take_shard
from fedctta.papers.tables import load_paper
from fedctta.runs.settings import Experiment

TABLE = """
title = "A table"
run = { dataset = "shapes-c", domains = "fog+contrast", clients = 4, slots = 2, device = "cpu" }
quick = { slots = 1 }

[[panel]]
name = "means"
columns.NIID = { stream = "niid" }
columns.IID = { stream = "iid" }
rows.Local = { aggregator = "local" }
rows.FedAvg = { aggregator = "fedavg" }

[[panel]]
name = "domains"
by = "domain"
columns.IID = { stream = "iid" }
rows.FedAvg = { aggregator = "fedavg" }
published.FedAvg = [70, 72, 71]
"""


@pytest.fixture
def table(tmp_path):
    (tmp_path / "mine.toml").write_text(TABLE)
    return str(tmp_path / "mine.toml")


def test_every_seed_of_every_cell_once(table):
    plan = make_plan(table, 2, False, (), "1/1", {"clients": "3"})
    assert [len(grid) for grid in plan.grids] == [4, 1]
    cells = [(each.stream, each.aggregator) for each in plan.mine[:4]]
    assert cells == [("niid", "local"), ("iid", "local"), ("niid", "fedavg"), ("iid", "fedavg")]
    assert [each.seed for each in plan.mine] == [0] * 4 + [1] * 4
    assert {(each.clients, each.slots) for each in plan.mine} == {(3, 2)}


def test_quick_and_a_panel(table):
    plan = make_plan(table, 1, True, ["domains"], "1/1", {})
    assert [panel.name for panel in plan.panels] == ["domains"]
    assert [each.slots for each in plan.mine] == [1]


def test_a_seed_is_told_to_have_no_effect(table):
    with pytest.raises(
        UserError, match="seed has no effect, as a reproduction plays seeds 0 to N - 1: say how many by --seeds"
    ):
        make_plan(table, 1, False, (), "1/1", {"seed": 3})


def test_a_parameter_that_no_cell_uses_is_told(table):
    with pytest.raises(
        UserError, match=r"fedctta.temperature has no effect: fedctta is in no cell of .*; drop the key"
    ):
        make_plan(table, 1, False, (), "1/1", {"fedctta.temperature": "0.5"})
    assert make_plan(table, 1, False, (), "1/1", {"bn.momentum": "0.5"}).mine[0].parameters == {"bn": {"momentum": 0.5}}


def test_shards_are_disjoint_and_whole():
    parts = [take_shard(range(7), f"{k}/3") for k in (1, 2, 3)]
    assert [list(part) for part in parts] == [[0, 3, 6], [1, 4], [2, 5]]
    for wrong in ("0/2", "3/2", "x", "1", "1/"):
        with pytest.raises(UserError, match="not a part of a whole"):
            take_shard(range(7), wrong)


def test_panels_are_chosen_in_the_papers_order(table):
    paper = load_paper(table)
    assert [panel.name for panel in choose_panels(paper, ["domains", "means"])] == ["means", "domains"]
    with pytest.raises(UserError, match="unknown panel of mine 'domain': did you mean domains"):
        choose_panels(paper, ["domain"])


def test_a_row_needs_as_many_numbers_as_columns(table):
    panel = load_paper(table).panels[1]
    require_as_many(panel, "FedAvg", 3)
    with pytest.raises(UserError, match="FedAvg has 3 published numbers for 4 of ours"):
        require_as_many(panel, "FedAvg", 4)


def test_a_panel_of_several_tables_is_chosen_whole_or_by_table():
    paper = load_paper("natural-pacs")
    assert len(choose_panels(paper, ["Batch 1"])) == 9
    assert [panel.name for panel in choose_panels(paper, ["Batch 1, trained on art"])] == ["Batch 1, trained on art"]


def test_panels_are_named_by_their_group_where_it_is_whole():
    paper = load_paper("natural-pacs")
    some = [panel for panel in paper.panels if panel.group == "Batch 1" or panel.name == "Batch 50, trained on art"]
    assert name_panels(paper, some) == ["Batch 1", "Batch 50, trained on art"]
    assert choose_panels(paper, name_panels(paper, some)) == some
    plain = load_paper("fedctta-table2")
    assert name_panels(plain, plain.panels) == [panel.name for panel in plain.panels]


def test_quick_leaves_tables_out():
    plan = make_plan("natural-pacs", 1, True, ["Batch 10"], "1/1", {})
    assert [panel.name for panel in plan.panels] == [
        "Batch 10, trained on photo",
        "Batch 10, trained on all but sketch",
    ]
    with pytest.raises(UserError, match="--quick leaves these panels out"):
        make_plan("natural-pacs", 1, True, ["Batch 1, trained on art"], "1/1", {})


def test_panels_with_fewer_seeds_ask_for_the_first_ones():
    few, many = {("a", "c"): Experiment(batch=3)}, {("a", "c"): Experiment(batch=4), ("b", "c"): Experiment(batch=3)}
    runs = add_seeds([few, many], [1, 2])
    assert [(run.batch, run.seed) for run in runs] == [(3, 0), (4, 0), (4, 1), (3, 1)]
    assert add_seeds([], []) == []
