"""Dictionaries of tensors."""

from __future__ import annotations

import torch

from fedctta.core.tensors import (
    choose,
    lay_out,
    masked_mean,
    may_hold,
    named,
    only,
    take_apart,
    towards,
    under,
)

A, B = {"x": torch.tensor([1.0, 2.0]), "y": torch.tensor(3.0)}, {"x": torch.tensor([5.0, 6.0]), "y": torch.tensor(7.0)}


def test_names_come_and_go():
    assert list(named("old", A)) == ["old.x", "old.y"]
    assert under("old", {**named("old", A), "older.x": A["x"], "x": A["x"]}) == A
    assert list(only(["y"], A)) == ["y"]


def test_choosing_is_a_branch_for_each_client():
    def one(condition, x):
        return choose(condition, {"x": x}, {"x": -x, "left": x})["x"]

    found = torch.func.vmap(one)(torch.tensor([True, False]), torch.tensor([1.0, 2.0]))
    assert found.tolist() == [1, -2]


def test_tensors_as_one_vector():
    both = {"y": torch.tensor([[3.0, 4.0]]), "x": torch.tensor([1.0, 2.0])}
    assert lay_out(both).tolist() == [1, 2, 3, 4]
    again = take_apart(lay_out(both), both)
    assert again.keys() == both.keys()
    assert all(torch.equal(again[name], both[name]) for name in both)


def test_a_moving_average():
    assert towards(A, B, 0.25)["x"].tolist() == [2, 3]


def test_the_mean_of_a_part():
    values = torch.tensor([1.0, 2.0, 6.0])
    assert masked_mean(values, torch.tensor([1.0, 0, 1])) == 3.5
    assert masked_mean(values, torch.zeros(3)) == 0


def test_a_condition_of_one_client_can_be_asked_and_of_several_not():
    assert may_hold(torch.tensor(True))
    assert not may_hold(torch.tensor(False))
    asked = []
    torch.func.vmap(lambda x: asked.append(may_hold(x)) or x)(torch.tensor([False, False]))
    assert asked == [True]
