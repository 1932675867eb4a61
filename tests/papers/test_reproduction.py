"""Running a published table: cells are kept, shared and marked when they fail."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from fedctta.aggregators import Aggregator, aggregators
from fedctta.errors import UserError
from fedctta.papers import playing, reproduction, tables
from fedctta.papers.pool import pack
from fedctta.papers.reproduction import foresee, reproduce
from fedctta.runs import datasets

TABLE = """
title = "A table"
run = { dataset = "shapes-c", domains = "fog+contrast", clients = 4, slots = 2, niid.clusters = 2, device = "cpu" }
quick = { slots = 1 }

[[panel]]
name = "means"
columns.NIID = { stream = "niid" }
columns.IID = { stream = "iid" }
rows."No-Adapt" = { adapter = "none" }
rows.FedAvg = { aggregator = "fedavg" }
published.FedAvg = [50, [60, 1]]

[[panel]]
name = "domains"
by = "domain"
columns.IID = { stream = "iid" }
rows.FedAvg = { aggregator = "fedavg" }
published.FedAvg = [70, 72, 71]

[[panel]]
name = "positions"
by = "position"
columns.NIID = { stream = "niid" }
rows.FedAvg = { aggregator = "fedavg" }
"""


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def played(monkeypatch):
    """Note every experiment that is really played."""
    seen = []
    simulate = playing.run_one.__globals__["simulate"]

    def noting(*arguments, **words):
        seen.append(words["fingerprint"])
        return simulate(*arguments, **words)

    monkeypatch.setitem(playing.run_one.__globals__, "simulate", noting)
    return seen


@pytest.fixture
def table(tmp_path):
    def table(text=TABLE):
        (tmp_path / "mine.toml").write_text(text)
        return "mine.toml"

    return table


def test_every_cell_once_although_panels_share_some(table, played):
    means, domains, positions = reproduce(table()).tables
    assert len(played) == 4  # FedAvg and No-Adapt, two streams; the other panels are made of the same runs
    assert means.columns == ("NIID", "IID")
    no_adapt, fedavg = means.lines
    assert fedavg.entries[0].paper == 50
    assert fedavg.entries[1].difference == pytest.approx(fedavg.entries[1].mean - 60)
    assert np.isnan(no_adapt.entries[0].paper)
    assert domains.columns == ("fog", "contrast", "mean")
    assert [entry.paper for entry in domains.lines[0].entries] == [70, 72, 71]
    assert domains.lines[0].entries[2].ours == fedavg.entries[1].ours
    assert np.mean([e.mean for e in domains.lines[0].entries[:2]]) == pytest.approx(fedavg.entries[1].mean)
    assert positions.columns == ("1", "2", "mean")
    assert positions.lines[0].entries[2].ours == fedavg.entries[0].ours


def test_finished_cells_are_kept_and_a_new_seed_runs_alone(table, played):
    first = reproduce(table())
    assert str(reproduce(table()).tables[0].lines) == str(first.tables[0].lines)  # they hold nan
    assert len(played) == 4
    more = reproduce(table(), seeds=2)
    assert len(played) == 8
    assert [len(entry.ours) for entry in more.tables[0].lines[1].entries] == [2, 2]
    assert more.tables[0].lines[1].entries[0].ours[0] == first.tables[0].lines[1].entries[0].ours[0]


CLIENTS = """
[[panel]]
name = "clients"
by = "client"
columns.IID = { stream = "iid" }
rows.FedAvg = { aggregator = "fedavg" }
published.FedAvg = [1, 2, 3, 4, 2.5]
"""


@pytest.mark.parametrize(
    ("text", "words", "told"),
    [
        (TABLE.replace("[70, 72, 71]", "[70, 71]"), {}, "panel domains: FedAvg has 2 published numbers for 3 of ours"),
        (TABLE + "published.FedAvg = [1, 2, 3, 4]", {}, "panel positions: FedAvg has 4 published numbers for 3"),
        (TABLE, {"domains": "fog"}, "panel domains: FedAvg has 3 published numbers for 2 of ours"),
        (TABLE + CLIENTS, {"clients": 2}, "panel clients: FedAvg has 5 published numbers for 3 of ours"),
    ],
)
def test_published_numbers_that_are_not_as_many_are_told_before_anything_runs(text, words, told, table, played):
    with pytest.raises(UserError, match=told):
        reproduce(table(text), **words)
    assert played == []


def test_rows_with_unequal_numbers_are_told(table):
    unequal = TABLE + 'rows.Local = { aggregator = "local" }\npublished.FedAvg = [1, 2, 3]\npublished.Local = [1, 2]\n'
    with pytest.raises(UserError, match=r"different numbers of published numbers \(FedAvg 3, Local 2\)"):
        reproduce(table(unequal))


def test_an_interrupted_reproduction_goes_on(table, played, monkeypatch):
    plain = playing.run_one

    def stops(experiment, *arguments, **words):
        if experiment.stream == "iid":
            raise KeyboardInterrupt
        return plain(experiment, *arguments, **words)

    monkeypatch.setattr(playing, "run_one", stops)
    with pytest.raises(KeyboardInterrupt):
        reproduce(table())
    done = len(played)
    assert 0 < done < 4
    monkeypatch.setattr(playing, "run_one", plain)
    reproduce(table())
    assert len(played) == 4


def test_a_cell_that_fails_is_marked_and_the_others_run(table, played):
    @dataclass(frozen=True)
    class Broken(Aggregator):
        """Fail."""

        name: ClassVar[str] = "broken"

        def collaborate(self, server, uploads, memory):
            raise RuntimeError("out of\nluck")

    aggregators.register(Broken)
    broken = TABLE.replace('rows.FedAvg = { aggregator = "fedavg" }', 'rows.FedAvg = { aggregator = "broken" }', 1)
    result = reproduce(table(broken + 'rows.FedBN = { aggregator = "fedbn" }'))
    no_adapt, fedavg = result.tables[0].lines
    assert no_adapt.entries[0].ours
    assert fedavg.entries[0].reason == "RuntimeError: out of luck"
    assert "use adapter=grad" in result.tables[2].lines[1].entries[0].reason
    assert result.tables[2].lines[0].entries[0].ours
    assert result.failed == ["FedAvg", "FedBN"]


def test_data_that_cannot_be_had_are_told_and_are_no_failure(table, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))
    (tmp_path / "empty").mkdir()
    asked = []
    load = datasets.load_domains
    monkeypatch.setattr(datasets, "load_domains", lambda *a, **k: asked.append(a[0]) or load(*a, **k))
    with_cifar = TABLE.replace('{ stream = "niid" }', '{ stream = "niid", dataset = "cifar100-c", folder = "empty" }')
    result = reproduce(table(with_cifar))
    means, _, positions = result.tables
    assert means.lines[1].entries[0].reason.startswith("not available: ")
    assert means.lines[1].entries[1].ours
    assert positions.lines[0].entries[0].reason.startswith("not available: ")
    assert result.failed == []
    assert "not available" in means.markdown()
    assert asked.count("cifar100-c") == 1  # a download that fails is not tried for every cell


def test_shards_share_the_work(table, played):
    reproduce(table(), shard="1/2")
    assert len(played) == 2
    part = reproduce(table(), shard="2/2")
    assert len(played) == 4
    assert part.failed == []
    whole = reproduce(table())
    assert len(played) == 4
    assert all(entry.ours for line in whole.tables[0].lines for entry in line.entries)


def test_gathering_shows_what_is_kept_and_runs_nothing(table, played):
    reproduce(table(), shard="1/2")
    there = len(played)
    part = reproduce(table(), gather=True, seeds=2)
    assert len(played) == there
    assert part.command.endswith("--seeds 2 --gather")
    entries = [entry for line in part.tables[0].lines for entry in line.entries]
    assert {(len(entry.ours), entry.reason) for entry in entries} == {(1, ""), (0, "not available: not run yet")}
    assert part.failed == []


def test_gathering_reads_a_file_of_records_too(table, played, tmp_path):
    reproduce(table(), shard="1/2", pool=tmp_path / "pool")
    pack(tmp_path / "pool", tmp_path / "packed" / "records.parquet")
    there = len(played)
    kept = reproduce(table(), gather=True, pool=tmp_path / "pool")
    packed = reproduce(table(), gather=True, pool=tmp_path / "packed")
    assert len(played) == there
    assert [path.name for path in (tmp_path / "packed").iterdir()] == ["records.parquet"]
    assert any(entry.ours for line in packed.tables[0].lines for entry in line.entries)
    assert [table.grid() for table in packed.tables] == [table.grid() for table in kept.tables]


def test_what_a_file_of_records_has_is_not_played_again(table, played, tmp_path):
    reproduce(table(), shard="1/2", pool=tmp_path / "pool")
    pack(tmp_path / "pool", tmp_path / "packed" / "records.parquet")
    (plan,) = foresee(table(), pool=tmp_path / "packed")
    assert (plan.runs, len(plan.seconds), len(played)) == (4, 2, 2)
    whole = reproduce(table(), pool=tmp_path / "packed")
    assert len(played) == 4
    assert [table.grid() for table in whole.tables] == [table.grid() for table in reproduce(table()).tables]


def test_quick_says_so(table, tmp_path):
    result = reproduce(table(), quick=True, panels=["means"])
    result.write(tmp_path / "report")
    text = (tmp_path / "report" / "mine.md").read_text()
    assert (
        "**Missing: the whole protocol (--quick: 1 slot per domain instead of 2); domains and positions (no runs).**"
        " Printed numbers are of the whole protocol." in text
    )
    assert '`fedctta reproduce mine.toml --panel "means" --quick`' in text
    assert len(result.tables) == 1


def test_quick_tells_where_images_decide_the_length(table):
    whole = table().replace("mine", "whole")
    Path(whole).write_text(Path(table()).read_text().replace("slots = 2,", "batch = 100,"))
    assert reproduce(whole, quick=True, panels=["positions"]).quick == "1 slot per domain instead of all images"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"panels": ["mean"]}, "unknown panel of mine 'mean': did you mean means"),
        ({"seeds": 0}, "--seeds 0"),
        ({"shard": "3/2"}, "--shard 3/2"),
        ({"shard": "x"}, "--shard x"),
        ({"slts": "2"}, "unknown key 'slts'"),
    ],
)
def test_a_mistake_is_told_before_anything_runs(words, told, table, played):
    with pytest.raises(UserError, match=told):
        reproduce(table(), **words)
    assert played == []


GAINS = """
title = "{title}"
run = {{ dataset = "shapes-c", domains = "fog+contrast", clients = 2, slots = 1, stream = "iid", device = "cpu" }}

[[panel]]
name = "Batch 10"
by = "domain"
baseline = "No-Adapt"
columns.all = {{}}
rows."No-Adapt" = {{ adapter = "none" }}
rows.FedAvg = {{ aggregator = "fedavg" }}
"""


def test_a_ranking_plays_its_presets_and_writes_all_pages(tmp_path, monkeypatch):
    places = {}
    for name in ("one", "two"):
        places[name] = tmp_path / f"{name}.toml"
        places[name].write_text(GAINS.format(title=name.title()))
    places["both"] = tmp_path / "both.toml"
    places["both"].write_text('title = "Both"\npresets = ["one", "two"]')
    monkeypatch.setattr(tables, "published", lambda: places)
    result = reproduce("both")
    assert [table.name for table in result.tables] == ["All servers, all sets", "One", "Two"]
    (line,) = result.tables[0].lines
    summary, whole = result.parts[0].tables
    gains = summary.lines[0].entries[0]
    base, ours = (np.mean([entry.mean for entry in row.entries[:-1]]) for row in whole.lines)
    assert line.entries[0].mean == pytest.approx(gains.mean) == pytest.approx(ours - base)
    page = result.write(tmp_path / "out" / "both")
    assert {path.parent.name for path in (tmp_path / "out").rglob("report.html")} == {"both", "one", "two"}
    assert "One: FedAvg gains most" in page.read_text(encoding="utf-8")
    with pytest.raises(UserError, match="ranks whole presets"):
        reproduce("both", panels=["Batch 10"])


def test_a_group_that_continues_the_first_adds_methods_to_the_ranking(tmp_path, monkeypatch):
    text = GAINS.format(title="One")
    first = text[text.index("[[panel]]") :]
    more = first.replace("rows.FedAvg", "rows.Kin").replace('"fedavg"', '"kin"')
    name = first.split('name = "', 1)[1].split('"', 1)[0]
    text += more.replace(f'name = "{name}"', f'name = "{name}, by gradients"')
    places = {"one": tmp_path / "one.toml", "all": tmp_path / "all.toml"}
    places["one"].write_text(text)
    places["all"].write_text('title = "All"\npresets = ["one"]')
    monkeypatch.setattr(tables, "published", lambda: places)
    assert {line.label for line in reproduce("all").tables[0].lines} == {"FedAvg", "Kin"}


def test_missing_source_models_are_trained_before_the_first_run(table, played, monkeypatch):
    trained = []

    def train_sources(found, say, jobs, stop):
        assert stop
        trained.append((len(found), len(played)))

    monkeypatch.setattr(reproduction, "train_sources", train_sources)
    text = TABLE.replace('title = "A table"', 'title = "A table"\npretrain = { epochs = 1 }')
    reproduce(table(text), weights="auto", gather=True)
    assert not trained
    reproduce(table(text))
    assert trained == [(0, 0)]  # the package has these weights
