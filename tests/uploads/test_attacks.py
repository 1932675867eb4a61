"""Clients that lie."""

from __future__ import annotations

import pytest
import torch

from fedctta.aggregators import Uploads
from fedctta.books.rows import Layout
from fedctta.errors import UserError
from fedctta.uploads.attacks import Liars, choose_liars, has_effect

SOURCE = {"bn.running_mean": torch.tensor([1.0, 2.0]), "bn.running_var": torch.tensor([1.0, 1.0])}


def uploads():
    own = {
        "bn.running_mean": torch.tensor([[0.0, 0.0], [4.0, 1.0], [5.0, 5.0]]),
        "bn.running_var": torch.tensor([[1.0, 1.0], [3.0, 0.5], [2.0, 2.0]]),
    }
    return Uploads(own, {"signal": torch.tensor([1.0, 2.0, 3.0])}, torch.tensor([True, True, False]))


def test_liars_are_drawn_from_the_seed():
    assert choose_liars(20, 2, 0) == choose_liars(20, 2, 0)
    assert len(set(choose_liars(20, 5, 3))) == 5
    assert len({choose_liars(20, 2, seed) for seed in range(10)}) > 5
    assert set(choose_liars(20, 1, 0)) < set(choose_liars(20, 2, 0))


def test_somebody_must_be_honest():
    with pytest.raises(UserError, match="liars=4 leaves nobody honest of 4 clients"):
        choose_liars(4, 4, 0)


@pytest.mark.parametrize("lie", ["sign", "scale", "random"])
def test_the_honest_are_left_alone(lie):
    true, told = uploads(), Liars((1,), lie).tamper(uploads(), SOURCE, 0)
    for name in true.own:
        assert torch.equal(told.own[name][[0, 2]], true.own[name][[0, 2]])
        assert not torch.equal(told.own[name][1], true.own[name][1])
    assert told.signals["signal"][[0, 2]].tolist() == [1, 3]
    assert told.signals["signal"][1] != 2
    assert (told.own["bn.running_var"] >= 0).all()
    assert told.trust.tolist() == [1, 1, 0]  # a lie counts as much as a truth


def test_a_change_is_mirrored_in_the_source():
    told = Liars((1,), "sign").tamper(uploads(), SOURCE, 0)
    assert told.own["bn.running_mean"][1].tolist() == [-2, 3]
    assert told.own["bn.running_var"][1].tolist() == [0, 1.5]
    assert told.signals["signal"][1] == -2


def test_a_scale_is_a_hundred():
    told = Liars((1,), "scale").tamper(uploads(), SOURCE, 0)
    assert told.own["bn.running_mean"][1].tolist() == [400, 100]
    assert told.signals["signal"][1] == 200


@pytest.mark.parametrize("lie", ["sign", "scale", "random", "statistics"])
def test_whole_numbers_name_things_and_stay_true(lie):
    counts = uploads()._replace(signals={"name": torch.tensor([1, 2, 3])})
    assert torch.equal(Liars((1,), lie).tamper(counts, SOURCE, 0).signals["name"], counts.signals["name"])


def test_shifted_statistics_come_with_honest_looks():
    source = SOURCE | {"bn.running_var": torch.tensor([4.0, 1.0]), "bn.weight": torch.ones(2)}
    true = uploads()
    true.own["bn.weight"] = torch.ones(3, 2)
    told = Liars((1,), "statistics").tamper(true, source, 0)
    torch.testing.assert_close(told.own["bn.running_mean"][1], torch.tensor([14.0, 6.0]), rtol=1e-5, atol=1e-4)
    assert torch.equal(told.own["bn.running_mean"][[0, 2]], true.own["bn.running_mean"][[0, 2]])
    for name in ("bn.running_var", "bn.weight"):
        assert torch.equal(told.own[name], true.own[name])
    assert torch.equal(told.signals["signal"], true.signals["signal"])


def test_of_a_book_only_parts_are_lied_about():
    rows = torch.rand(3, 2, Layout(2).width)
    signals = {"part": rows, "belief": torch.rand(3, 3), "name": torch.ones(3, 2, dtype=torch.int64)}
    source = {"norm.running_mean": torch.zeros(2), "norm.running_var": torch.ones(2)}  # whose rows these are
    told = Liars((1,), "random").tamper(Uploads({}, signals, torch.ones(3, dtype=torch.bool)), source, 0).signals
    assert torch.equal(told["part"][[0, 2]], rows[[0, 2]])
    assert not torch.equal(told["part"][1], rows[1])
    assert torch.equal(told["belief"], signals["belief"])


def test_lies_that_change_nothing_are_known():
    part, signal = {"part": torch.zeros(2, 3)}, {"signal": torch.zeros(2)}
    assert has_effect("statistics", {}, part)
    assert has_effect("statistics", SOURCE, {})
    assert not has_effect("statistics", {"fc.weight": torch.zeros(1)}, signal)
    assert has_effect("sign", {}, signal)
    assert not has_effect("sign", {}, {"name": torch.ones(2, dtype=torch.int64)})


def test_random_lies_differ_by_round_and_tensor_and_can_be_repeated():
    liars = Liars((0, 1), "random")
    first, again, later = (liars.tamper(uploads(), SOURCE, t).own for t in (0, 0, 1))
    assert torch.equal(first["bn.running_mean"], again["bn.running_mean"])
    assert not torch.equal(first["bn.running_mean"][1], later["bn.running_mean"][1])
    assert not torch.equal(first["bn.running_mean"][0], first["bn.running_mean"][1])
    assert not torch.equal(first["bn.running_mean"][1].abs(), first["bn.running_var"][1])
