"""A plan is read as it was written, and what cannot work is told."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from fedctta.errors import UserError
from fedctta.fleet.server.plan import LIMITS, Plan, build, load_plan, make_plan, write_plan


def test_round_trip(tmp_path):
    path = tmp_path / "fleet.toml"
    fleet = {"state": 'a "b"', "rounds": 7, "lockstep": True, "deadline": 2.5}
    path.write_text(write_plan(fleet, {"aggregator": "fedctta", "fedctta.temperature": 0.5, "seed": 3}))
    plan = load_plan(path)
    assert (plan.rounds, plan.lockstep, plan.deadline) == (7, True, 2.5)
    assert plan.state == str(tmp_path / 'a "b"')
    assert plan.experiment.parameters == {"fedctta": {"temperature": 0.5}}
    assert plan.experiment.seed == 3


@pytest.mark.parametrize(
    ("fleet", "run", "reason"),
    [
        ({"round": 3}, {}, "did you mean rounds"),
        ({"rounds": 0}, {}, "rounds=0 must lie between 1 and"),
        ({"rounds": "many"}, {}, "whole number"),
        ({"quorum": 0}, {}, "quorum"),
        ({"deadline": -1}, {}, "deadline"),
        ({"devices": 5, "max_devices": 4}, {}, "max_devices"),
        ({}, {"aggregator": "fedctt"}, "did you mean fedctta"),
        ({}, {"predict": "before"}, "a device predicts after adapting"),
        ({}, {"epsilon": 4.0}, "epsilon in a plan has no effect, noise is a device's own"),
        ({}, {"liars": 2}, "liars in a plan has no effect, real devices lie by themselves"),
        ({}, {"lie_until": 2}, "lie_until in a plan has no effect"),
        ({}, {"stragglers": 0.5}, "stragglers in a plan has no effect"),
        ({}, {"guard": "reset"}, "start them with --check and --guard"),
        ({}, {"interval": 2}, "interval in a plan has no effect"),
        ({}, {"robust": "median", "cap": 0.1}, "cap has no effect without robust=cap"),
        ({}, {"clip": 3.0}, "clip has no effect without robust=clip"),
        ({"lockstep": True}, {"min_batch": 64}, "min_batch=64 is above batch=10, so that no device would share"),
        ({"lockstep": True}, {"tent.lr": 0.1}, r"tent\.lr has no effect: adapter tent is in none"),
        ({"lockstep": True}, {"recall.domains": 5}, r"recall\.domains has no effect"),
        ({}, {"robust": "check"}, "robust=check has no effect in a fleet"),
    ],
)
def test_wrong_words(fleet, run, reason):
    with pytest.raises(UserError, match=reason):
        make_plan(fleet, run)


def test_every_number_has_bounds():
    numbers = {f.name for f in fields(Plan) if type(f.default) in (int, float)}
    assert numbers == LIMITS.keys()
    for key, (least, most) in LIMITS.items():
        for value in (least - 1, -1.0, most * 2, float("nan"), float("inf"), -float("inf")):
            with pytest.raises(UserError, match=rf"^{key}="):
                Plan(**{key: value})


@pytest.mark.parametrize("aggregator", ["recall", "fedavg"])
def test_devices_that_do_not_wait_may_have_larger_batches_than_the_plan_says(aggregator):
    assert make_plan({}, {"min_batch": 64, "aggregator": aggregator}).experiment.min_batch == 64


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        ({"aggregator": "local"}, "nothing for a server to do"),
        ({"aggregator": "oracle"}, "nothing for a server to do"),
        ({"dataset": "scenes"}, "every pixel"),
        ({"aggregator": "ugsa", "robust": "median"}, "no effect"),
        ({"aggregator": "recall", "adapter": "recall", "robust": "clip"}, "robust=clip has no effect on recall"),
    ],
)
def test_what_a_server_cannot_do(run, reason):
    with pytest.raises(UserError, match=reason):
        build(make_plan({}, {"dataset": "shapes-c", **run}))


def test_parts_fit_each_other():
    hub, examiner = build(make_plan({"max_devices": 6}, {"dataset": "shapes-c", "aggregator": "fedtsa"}))
    assert hub.server.clients == 6
    assert list(examiner.signals) == ["indicator"]
    assert examiner.variances <= hub.shared.keys()
    assert len(hub.start().rows["stem.1.running_mean"]) == 6


def test_other_tables_are_refused(tmp_path):
    (tmp_path / "x.toml").write_text("[flet]\n")
    with pytest.raises(UserError, match="did you mean fleet"):
        load_plan(tmp_path / "x.toml")


def test_a_plan_that_is_not_there_is_called_a_plan(tmp_path):
    with pytest.raises(UserError, match=r"there is no plan file .*x\.toml: check the path"):
        load_plan(tmp_path / "x.toml")


def test_without_methods_the_server_adds_up_books_and_refuses_lock_step_for_them():
    plan = make_plan({"max_devices": 3}, {"dataset": "shapes-c"})
    assert (plan.experiment.adapter, plan.experiment.aggregator) == ("recall", "recall")
    hub, examiner = build(plan)
    assert hub.start().rows["book"].shape[0] == 3
    assert hub.shared == {}
    assert examiner.sums
    with pytest.raises(UserError, match="lock-step has no effect"):
        build(make_plan({"lockstep": True}, {"dataset": "shapes-c", "adapter": "recall", "aggregator": "recall"}))
    assert make_plan({"lockstep": True}, {}).experiment.adapter == "bn"


def test_a_check_that_is_stricter_than_the_servers_own_is_taken():
    assert make_plan({"norm_bound": 100.0}, {"robust": "check"}).experiment.robust == "check"
    assert make_plan({}, {"aggregator": "fedavg", "robust": "trimmed", "trim": 0.1}).experiment.trim == 0.1


def test_a_server_can_probe_with_images():
    run = {"dataset": "shapes-c", "adapter": "bn", "aggregator": "fedctta", "fedctta.probe": "images"}
    hub, _ = build(make_plan({}, run))
    assert hub.start().memory["probe"].shape[1:] == (3, 32, 32)


def test_the_docs_have_every_key_and_its_default():
    page = (Path(__file__).parents[3] / "docs" / "fleet.md").read_text(encoding="utf-8")
    _, _, after = page.partition("All keys of `[fleet]`:")
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", after.partition("**3.")[0], re.MULTILINE)
    told = {
        key: default
        for keys, defaults in rows
        for key, default in zip(re.findall(r"`(\w+)`", keys), defaults.split(", "), strict=True)
    }
    usual = {f.name: str(f.default) for f in fields(Plan) if f.name != "experiment"}
    assert told == usual | {"lockstep": "false"}
