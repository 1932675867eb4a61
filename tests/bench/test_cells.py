"""What is measured, and what a user may get wrong."""

from __future__ import annotations

import pytest
import torch

from fedctta.bench import cells
from fedctta.bench.cells import CLIENTS, MIN_ROUNDS, QUICK, Cell, make_plan
from fedctta.errors import UserError


@pytest.mark.parametrize(
    ("adapter", "aggregator", "passes"),
    [("bn", "fedavg", 20), ("grad", "fedavg", 38), ("tent", "fedtsa", 38), ("bbn", "fedctta", 83)],
)
def test_images_passed_through_the_network(adapter, aggregator, passes):
    assert Cell("resnet8", adapter, aggregator, 20, 10).passes == passes


def test_the_default_on_a_cpu_is_small_and_all_is_the_whole_grid():
    assert len(make_plan(device="cpu").cells) == 3
    whole = make_plan(device="cpu", everything=True).cells
    assert len(whole) == 2 * 4 * 3 * 3
    assert {cell.clients for cell in whole} == {20, 200, 2000}


def test_any_method_and_model_can_be_measured():
    plan = make_plan(device="cpu", models="efficientnet-lite0,conv1d", size=128, adapters="recall", aggregators="kin")
    assert plan.ways == ("a", "b")
    assert [cell.network for cell in plan.cells] == ["efficientnet-lite0 at 128", "conv1d"]


def test_on_a_gpu_the_old_floor_is_shown_too(monkeypatch):
    monkeypatch.setattr(cells, "choose_device", lambda name: torch.device("cuda"))
    assert make_plan(clients="20").ways == ("a", "a'", "b", "c", "d")
    assert make_plan(precision="bf16", adapters="recall", aggregators="recall").ways == ("a", "a'", "b")
    with pytest.raises(UserError, match="--all has no effect on a GPU"):
        make_plan(everything=True)


def test_quick_gives_way_to_what_is_said():
    plan = make_plan(device="cpu", quick=True, clients="4,2", models="resnet8", ways="d,b")
    assert {cell.model for cell in plan.cells} == {"resnet8"}
    assert [cell.clients for cell in plan.cells[:2]] == [2, 4]
    assert {cell.adapter for cell in plan.cells} == set(QUICK.adapters) == set(CLIENTS)
    assert plan.ways == ("b", "d")
    assert plan.rounds == MIN_ROUNDS
    assert make_plan(device="cpu", quick=True, rounds=5).rounds == 5


def test_a_list_holds_nothing_twice():
    assert len(make_plan(device="cpu", adapters="bn, bn,", clients="4,4").cells) == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"models": "resnet9"}, "did you mean"),
        ({"adapters": "tant"}, "unknown adapter to measure 'tant': did you mean tent"),
        ({"aggregators": "kim"}, "did you mean kin"),
        ({"ways": "a,a'"}, "way a' differs from way a on a GPU only"),
        ({"aggregators": "kin", "ways": "b,c,d"}, "way c or d is written for adapters bn, grad, tent or bbn"),
        ({"models": "unet", "ways": "c"}, "models of single pictures"),
        ({"models": "conv1d", "size": 64}, "--size 64 has no effect on series"),
        ({"size": 4}, "--size 4 must be at least 8"),
        ({"precision": "tf32"}, "--precision tf32 has no effect on a CPU"),
        (
            {"everything": True, "models": "resnet8", "adapters": "bn", "aggregators": "kin", "clients": "2"},
            "--all has no effect",
        ),
        ({"ways": "a,e"}, "unknown way to measure 'e'"),
        ({"ways": ","}, "no way is given"),
        ({"clients": "many"}, "--clients many is not a number of clients"),
        ({"clients": "1"}, "from 2 on"),
        ({"batch": 1}, "--batch 1 must be at least 2"),
        ({"rounds": 2}, "--rounds 2 must be at least 3"),
        ({"seconds": 0}, "--seconds 0 must be above 0"),
        ({"seconds": float("nan")}, "--seconds nan must be above 0"),
        ({"precision": "half"}, "unknown precision 'half'"),
        ({"storage": "half"}, "unknown storage 'half'"),
        ({"storage": "bf16", "ways": "a"}, "--storage bf16 has no effect without way b"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"quick": True, "everything": True}, "give one of them"),
    ],
)
def test_bad_input_is_told_in_one_line(options, told):
    with pytest.raises(UserError, match=told.replace("+", r"\+")) as caught:
        make_plan(**{"device": "cpu", **options})
    assert "\n" not in str(caught.value)
