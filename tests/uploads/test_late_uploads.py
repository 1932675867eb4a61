"""Uploads that are on their way."""

from __future__ import annotations

import torch

from fedctta.core.tensors import choose_rows
from fedctta.uploads.late_uploads import blend, collect, send


def letters(*values):
    return {"own.w": torch.tensor(values, dtype=torch.float32)[:, None]}


def test_a_letter_arrives_when_it_is_due_and_only_once():
    box = send({}, letters(1, 2, 3), torch.tensor([True, False, True]), torch.tensor([6, 9, 7]), t=5)
    early, box = collect(box, 5)
    assert early == []
    (first,), box = collect(box, 6)
    assert first.arrived.tolist() == [True, False, False]
    assert first.age == 1
    assert first.letters["own.w"][0] == 1
    (second,), box = collect(box, 9)  # nobody looked in round 7
    assert second.arrived.tolist() == [False, False, True]
    assert second.age == 4
    assert second.letters["own.w"][2] == 3
    assert box == {}


def test_a_client_may_have_several_letters_on_their_way():
    """Sent in rounds 5, 6 and 7, the first two arrive in round 8, the newer first, and the third in round 9."""
    box, somebody = {}, torch.tensor([True, False])
    for t, due in ((5, 8), (6, 8), (7, 9)):
        box = send(box, letters(t, 0), somebody, torch.tensor([due, 0]), t)
    found, box = collect(box, 8)
    assert [(d.age, d.letters["own.w"][0].item(), d.arrived.tolist()) for d in found] == [
        (2, 6, [True, False]),
        (3, 5, [True, False]),
    ]
    (last,), box = collect(box, 9)
    assert (last.age, last.letters["own.w"][0].item()) == (2, 7)
    assert box == {}


def test_a_mailbox_holds_the_letters_of_as_many_rounds_as_the_longest_delay():
    box, most = {}, 0
    for t in range(20):
        _, box = collect(box, t)
        box = send(box, letters(t, t), torch.tensor([True, t % 2 == 0]), torch.tensor([t + 1 + t % 3, t + 2]), t)
        most = max(most, sum(tensor.numel() for tensor in box.values()))
    assert most == 3 * 4  # of each round: two letters of one number, and when they are due


def test_letters_are_blended_by_their_share():
    rows = {"a": torch.tensor([[1.0], [1.0], [1.0]]), "whole": torch.tensor([1, 1, 1])}
    old = {"a": torch.tensor([[torch.nan], [3.0], [3.0]]), "whole": torch.tensor([3, 3, 3])}
    found = blend(rows, old, torch.tensor([0.0, 0.25, 1.0]))
    assert found["a"].tolist() == [[1.0], [1.5], [3.0]]
    assert found["whole"].tolist() == [1, 1, 3]
    nothing = blend({"a": torch.full((1, 1), torch.inf)}, {"a": torch.ones(1, 1)}, torch.ones(1))
    assert nothing["a"].tolist() == [[1.0]]  # what the row held before leaves no trace


def test_rows_are_chosen_whatever_their_shape():
    who = torch.tensor([True, False])
    for shape in ((2,), (2, 3), (2, 3, 4)):
        chosen = choose_rows(who, torch.ones(shape), torch.zeros(shape))
        assert (chosen[0] == 1).all()
        assert (chosen[1] == 0).all()
