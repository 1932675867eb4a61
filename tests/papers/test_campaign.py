"""All presets are played into one pool: a shared run once, nothing twice, a failure keeps no other from running."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fedctta.errors import UserError
from fedctta.papers import campaign
from fedctta.papers.campaign import plan_all, play_all
from fedctta.papers.playing import is_current
from fedctta.papers.pool import pack, read_pool
from fedctta.papers.sources import Training
from fedctta.runs.cache import Cache

POOL = Path("pool")


@pytest.fixture
def played(presets, monkeypatch):
    """Note every run that is really played."""
    seen = []
    simulate = campaign.run_one.__globals__["simulate"]

    def noting(*arguments, **words):
        seen.append(words["fingerprint"])
        return simulate(*arguments, **words)

    monkeypatch.setitem(campaign.run_one.__globals__, "simulate", noting)
    return seen


def play(**words):
    return play_all(plan_all(**words), POOL, 1, Console(stderr=True))


def test_a_run_that_presets_share_is_planned_once_and_first_seeds_come_first(presets):
    runs = plan_all().mine
    assert [(run.seed, run.adapter, run.aggregator) for run in runs] == [
        (0, "none", "local"),
        (0, "bn", "fedavg"),
        (0, "bn", "local"),
        (1, "none", "local"),
        (1, "bn", "fedavg"),
    ]
    assert len(plan_all(seeds=3).mine) == 9
    assert [len(plan_all(shard=f"{k}/2").mine) for k in (1, 2)] == [3, 2]
    with pytest.raises(UserError, match="--seeds 0"):
        plan_all(seeds=0)


def test_runs_can_be_chosen_by_their_keys_in_every_preset(presets):
    some = plan_all(only=["adapter=bn", "seed=0"])
    assert [(run.seed, run.adapter, run.aggregator) for run in some.mine] == [(0, "bn", "fedavg"), (0, "bn", "local")]
    local = plan_all(only=["aggregator=local"])
    assert {run.aggregator for plan in local.plans for run in plan.mine} == {"local"}
    (one,) = plan_all(only=["aggregator=local", "adapter=bn"]).plans  # the other preset has no such run
    assert [run.adapter for run in one.mine] == ["bn"]


def test_presets_and_panels_can_be_chosen():
    everything = plan_all(names=["natural"])
    assert [plan.paper.name for plan in everything.plans][:2] == ["natural-pacs", "natural-office"]
    some = plan_all(seeds=1, names=["natural-pacs", "natural-watch", "natural-pacs"], panels=["Batch 1"])
    assert [plan.paper.name for plan in some.plans] == ["natural-pacs"]  # watch has no such panel
    assert {run.batch for run in some.mine} == {1}
    with pytest.raises(UserError, match="unknown panel 'Batch 3'"):
        plan_all(names=["natural-pacs"], panels=["Batch 3"])
    with pytest.raises(UserError, match="fedctta reproduce PRESET seed=3"):
        plan_all(names=["seed=3"])


def test_what_is_there_is_not_played_again(played):
    first = play(shard="1/2")
    assert (first.runs, first.kept, first.played, first.failed) == (3, 0, 3, 0)
    rest = play()
    assert (rest.runs, rest.kept, rest.played) == (5, 3, 2)
    assert len(played) == 5
    assert play().kept == 5


def test_packed_runs_count_without_their_files(played):
    play()
    pack(POOL, POOL / "records.parquet")
    for path in (POOL / "runs").iterdir():
        path.unlink()
    assert play().kept == 5
    assert len(played) == 5


def test_other_weights_than_the_record_has_are_played_again(played):
    experiment = plan_all().mine[0]
    play()
    run = read_pool(POOL)[experiment.anywhere.fingerprint]
    again, other = (
        replace(run, settings={**run.settings, "source": {**run.settings["source"], **changed}})
        for changed in ({"date": "1999-01-01"}, {"accuracy": 0.123})
    )
    assert is_current(experiment, run.settings, Cache())
    assert is_current(experiment, again.settings, Cache())  # the same recipe and accuracy, on another day
    assert not is_current(experiment, other.settings, Cache())
    gone = replace(experiment, weights="nobody-trained-these")
    assert is_current(gone, run.settings, Cache())  # nothing to compare with


def test_a_run_of_other_defaults_is_played_again(played):
    experiment = next(each for each in plan_all().mine if each.adapter == "bn")
    play()
    run = read_pool(POOL)[experiment.anywhere.fingerprint]
    other = replace(run, settings={**run.settings, "bn": {**run.settings["bn"], "momentum": 0.3}})
    assert is_current(experiment, run.settings, Cache())
    assert not is_current(experiment, other.settings, Cache())


def test_a_failure_is_told_and_the_others_run(presets, monkeypatch):
    plain = campaign.run_one

    def fails(experiment, *arguments, **words):
        if experiment.aggregator == "fedavg":
            raise UserError("out of luck")
        return plain(experiment, *arguments, **words)

    monkeypatch.setattr(campaign, "run_one", fails)
    done = play()
    assert (done.played, done.failed, dict(done.reasons)) == (3, 2, {"out of luck": 2})


def test_data_that_are_not_there_are_no_failure(presets):
    two = presets["two"]
    two.write_text(two.read_text().replace('"shapes-c"', '"folders", folder = "nowhere"'))
    done = play()
    assert (done.played, done.failed) == (4, 0)
    assert all(reason.startswith("not available") for reason in done.reasons)


def test_runs_side_by_side_are_counted_and_failures_told(presets, monkeypatch):
    def side_by_side(experiments, folder, jobs, resume, on_done):
        for k, experiment in enumerate(experiments):
            on_done(experiment, "out of luck" if k == 1 else "")
        return {experiments[1].fingerprint: "out of luck"}

    monkeypatch.setattr(campaign, "side_by_side", side_by_side)
    monkeypatch.setattr(campaign, "count", lambda first: iter(range(first, 9)))
    console = Console(width=80)
    with console.capture() as told:
        done = play_all(plan_all(), POOL, 2, console, progress=True)
    assert told.get().splitlines() == ["[1/5]", "[2/5] out of luck", "[3/5]", "[4/5]", "[5/5]"]
    assert (done.played, done.failed) == (4, 1)
    with pytest.raises(UserError, match="--jobs 0"):
        play_all(plan_all(), POOL, 0, console)


def test_runs_that_need_a_training_come_last_and_are_left_out_where_it_fails(played, monkeypatch):
    first, *_ = plan_all().mine
    training = Training({"model": "x"}, Path("x"))
    needs = {"none": [training], "bn": []}
    monkeypatch.setattr(campaign, "find_trainings", lambda paper, runs: [t for run in runs for t in needs[run.adapter]])
    trained = []
    monkeypatch.setattr(campaign, "train_sources", lambda found, say, jobs: trained.append((found, len(played))) or {})
    assert play().played == 5
    assert trained == [([training], 3)]  # once, after the three runs that need none

    monkeypatch.setattr(campaign, "train_sources", lambda found, say, jobs: {Path("x"): "no images"})
    done = play_all(plan_all(), Path("other"), 1, Console(stderr=True))
    assert (done.played, done.failed, dict(done.reasons)) == (3, 0, {"not available: no images": 2})
    assert first.adapter == "none"
