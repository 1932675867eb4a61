"""Uploads that are on their way."""

from __future__ import annotations

import torch

from fedctta.mailbox import choose_rows, collect, empty, send

CPU = torch.device("cpu")


def letters(*values):
    return {"own.w": torch.tensor(values, dtype=torch.float32)[:, None]}


def test_a_letter_arrives_when_it_is_due_and_only_once():
    box = send(empty(3, CPU), letters(1, 2, 3), torch.tensor([True, False, True]), torch.tensor([6, 9, 7]), t=5)
    early, box = collect(box, 5)
    assert not early.arrived.any()
    first, box = collect(box, 6)
    assert first.arrived.tolist() == [True, False, False]
    assert first.age[0] == 1
    assert first.letters["own.w"][0] == 1
    second, box = collect(box, 9)  # nobody looked in round 7
    assert second.arrived.tolist() == [False, False, True]
    assert second.age[2] == 4
    assert second.letters["own.w"][2] == 3
    assert not collect(box, 99)[0].arrived.any()


def test_a_newer_letter_takes_the_place_of_the_older():
    everybody = torch.tensor([True])
    box = send(empty(1, CPU), letters(1), everybody, torch.tensor([8]), t=5)
    box = send(box, letters(2), everybody, torch.tensor([7]), t=6)
    delivery, box = collect(box, 7)
    assert (delivery.letters["own.w"].item(), delivery.age.item()) == (2, 1)
    assert not collect(box, 8)[0].arrived.any()


def test_a_mailbox_does_not_grow():
    box = empty(2, CPU)
    for t in range(20):
        box = send(box, letters(t, t), torch.tensor([True, t % 2 == 0]), torch.full((2,), t + 3), t)
        box = collect(box, t)[1]
        assert {name: tuple(tensor.shape) for name, tensor in box.items()} == {
            "due": (2,),
            "sent": (2,),
            "own.w": (2, 1),
        }


def test_rows_are_chosen_whatever_their_shape():
    who = torch.tensor([True, False])
    for shape in ((2,), (2, 3), (2, 3, 4)):
        chosen = choose_rows(who, torch.ones(shape), torch.zeros(shape))
        assert (chosen[0] == 1).all()
        assert (chosen[1] == 0).all()
