"""Dictionaries of tensors."""

from __future__ import annotations

import torch

from fedctta.core.tensors import choose, masked_mean, named, only, towards, under

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


def test_a_moving_average():
    assert towards(A, B, 0.25)["x"].tolist() == [2, 3]


def test_the_mean_of_a_part():
    values = torch.tensor([1.0, 2.0, 6.0])
    assert masked_mean(values, torch.tensor([1.0, 0, 1])) == 3.5
    assert masked_mean(values, torch.zeros(3)) == 0
