"""Gains over a baseline: summed up over tables, and ranked over data sets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedctta.report.comparison import Comparison, Entry, Line
from fedctta.report.gains import MEAN, WORST, add_summaries, find_cells, rank, sum_up


def table(name, rows, group="Batch 10", columns=("photo", "sketch", "mean"), baseline="No-Adapt"):
    lines = tuple(Line(label, tuple(Entry(seeds) for seeds in entries)) for label, entries in rows.items())
    return Comparison(f"{group}, {name}", columns, lines, "domain", "none", baseline=baseline, group=group)


ROWS = {
    "No-Adapt": [(90.0, 92.0), (40.0, 40.0), (0.0, 0.0)],
    "Local": [(85.0, 89.0), (50.0, 54.0), (99.0, 99.0)],
    "Oracle (upper bound)": [(91.0, 93.0), (60.0, 60.0), (99.0, 99.0)],
}
PHOTO = table("photo", ROWS)
SKETCH = table(
    "sketch",
    {
        "No-Adapt": [(30.0, 30.0), (80.0, 80.0), (0.0, 0.0)],
        "Local": [(36.0, 36.0), (72.0, 72.0), (99.0, 99.0)],
        "Oracle (upper bound)": [(40.0, 40.0), (79.0, 79.0), (99.0, 99.0)],
    },
)


def test_a_cell_is_a_domain_of_a_table_and_its_gain_pairs_seeds():
    cells = find_cells([PHOTO, SKETCH])
    assert set(cells) == {"Local", "Oracle (upper bound)"}
    assert [(cell.place, cell.gains) for cell in cells["Local"]][:2] == [
        ("photo, photo", (-5.0, -3.0)),
        ("sketch, photo", (10.0, 14.0)),
    ]


def test_a_summary_has_the_mean_over_cells_the_worst_of_them_and_every_table():
    summary = sum_up([PHOTO, SKETCH])
    assert summary.columns == (MEAN, WORST, "photo", "sketch")
    local = summary.lines[0]
    assert local.entries[0].ours == ((-5 + 10 + 6 - 8) / 4, (-3 + 14 + 6 - 8) / 4)
    assert [entry.mean for entry in local.entries[1:]] == [-8.0, 4.0, -1.0]
    assert "mean over 4 cells" in summary.text
    assert "Local -8.00 (sketch, sketch)" in summary.text
    assert "Nobody gains in 2 of 4 cells: photo, photo; sketch, sketch." in summary.text  # the bound does not count
    assert summary.best(0) == frozenset()  # one competes alone


def test_a_cell_compares_the_seeds_that_it_and_the_baseline_have():
    columns = ("photo", "sketch", "mean")
    base = Line("No-Adapt", (Entry((50.0, 60.0), seeds=(0, 1)), Entry((50.0, 50.0), seeds=(0, 1)), Entry()))
    local = Line("Local", (Entry((61.0,), seeds=(1,)), Entry((51.0, 52.0), seeds=(0, 1)), Entry()))
    kin = Line("Kin", (Entry((60.0,), seeds=(2,)), Entry((51.0, 52.0), seeds=(0, 1)), Entry()))
    art = Comparison("art", columns, (base, local, kin), "domain", "none", baseline="No-Adapt")
    found = find_cells([art])
    assert [cell.gains for cell in found["Local"]] == [(1.0,), (1.0, 2.0)]
    assert [cell.place for cell in found["Kin"]] == ["sketch"]  # nothing in common elsewhere
    assert "with all seeds (cells times seeds): Local 3 of 4." in sum_up([art]).text
    assert "| Local | 61.00 (+1.00) | 51.50 (+1.50) |" in art.markdown().replace("**", "")


def test_a_method_that_lacks_cells_has_no_mean():
    tent = Line("Tent", (Entry((99.0, 99.0)), Entry((50.0, 50.0)), Entry()))
    whole, part = sum_up([replace(PHOTO, lines=(*PHOTO.lines, tent)), SKETCH]).lines[::2]
    assert whole.entries[0].ours
    assert part.label == "Tent (2 of 4 cells)"
    assert not part.entries[0].ours
    assert not part.entries[1].ours


def test_every_group_is_summed_up_before_its_first_table():
    other = table("photo", {"No-Adapt": [(1.0,)] * 3, "Local": [(2.0,)] * 3}, group="Batch 1")
    plain = table("x", {"No-Adapt": [(1.0,)] * 3}, group="", baseline="")
    names = [each.name for each in add_summaries([PHOTO, SKETCH, other, plain])]
    assert names == ["Batch 10: gains", PHOTO.name, SKETCH.name, "Batch 1: gains", other.name, plain.name]


def summary(**gains):
    lines = tuple(Line(label, (Entry((mean,)), Entry((worst,)))) for label, (mean, worst) in gains.items())
    return Comparison("", (MEAN, WORST), lines, metric="gain")


def test_a_bound_with_an_adapter_in_its_label_competes_with_nobody():
    rows = {("Oracle (upper bound), bn" if label.startswith("Oracle") else label): of for label, of in ROWS.items()}
    assert "Nobody gains in 1 of 2 cells: photo, photo." in sum_up([table("photo", rows)]).text
    ranking = rank({"PACS": summary(**{"Kin, bn": (4.0, 1.0), "Oracle (upper bound), bn": (9.0, 3.0)})})
    assert "PACS: Kin, bn gains most (+4.00)." in ranking.text


def test_the_ranking_is_by_the_mean_over_sets_and_tells_who_is_best_where():
    ranked = rank(
        {
            "PACS": summary(Local=(1.0, -9.0), Kin=(3.0, -2.0)),
            "watch": summary(Local=(-2.0, -4.0)),
            "eyes": summary(Local=(4.0, -1.0), Kin=(1.0, -3.0)),
            "moon": Comparison("", (MEAN, WORST), (Line("Local", (Entry(), Entry())),)),
        }
    )
    assert [line.label for line in ranked.lines] == ["Local", "Kin (2 of 3 sets)"]
    local, kin = ranked.lines
    assert not kin.entries[0].ours  # a mean over other sets cannot be compared
    assert [entry.mean for entry in kin.entries[1:4]] == [-3.0, -3.0, 3.0]
    assert not kin.entries[4].ours
    assert [entry.mean for entry in local.entries] == pytest.approx([1.0, -9.0, -2.0, 1.0, -2.0, 4.0])
    assert "PACS: Kin gains most (+3.00)." in ranked.text
    assert "watch: nobody gains; nearest is Local (-2.00)." in ranked.text
    assert ranked.columns[3:] == ("PACS", "watch", "eyes")
    assert "moon: not run yet." in ranked.text
    assert "eyes: Local gains most (+4.00)." in ranked.text
