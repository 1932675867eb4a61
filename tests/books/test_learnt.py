"""What is learnt by domain."""

from __future__ import annotations

import pytest
import torch

from fedctta.books.learnt import average, note_step, read_learnt
from fedctta.books.rows import Layout

LAYOUT = Layout(2, 3)


def rows(*told):
    """Return rows with so many images learnt on, and this mean of all numbers learnt."""
    book = torch.zeros(len(told), LAYOUT.width)
    for k, (count, value) in enumerate(told):
        LAYOUT.of(book, "trained")[k] = count
        book[k, LAYOUT.parts["learnt"]] = count * value
    return book


def test_a_stay_in_a_new_domain_begins_with_what_others_have_learnt():
    private = {"part": rows((2, 0.1), (0, 0)), "book": rows((0, 0), (4, 0.5)), "held": torch.tensor([1.0, 1.0])}
    assert read_learnt(LAYOUT, private).tolist() == [pytest.approx([0.1] * 3), [0.5] * 3]
    gone = private | {"held": torch.zeros(2)}
    assert read_learnt(LAYOUT, gone)[1].tolist() == [0] * 3


def test_own_and_received_are_averaged_by_images():
    private = {"part": rows((1, 1.0), (2, 1.0)), "book": rows((3, 0.2), (3, 0.2)), "held": torch.tensor([1.0, 0.0])}
    mean = average(LAYOUT, private)
    assert read_learnt(LAYOUT, mean)[:, 0].tolist() == pytest.approx([0.4, 1.0])
    assert LAYOUT.of(mean["part"], "trained").tolist() == [1, 2]


def test_a_step_moves_the_domains_by_belief():
    private = {"part": rows((2, 0.1), (2, 0.3)), "book": rows((0, 0), (0, 0)), "held": torch.zeros(2)}
    learnt = read_learnt(LAYOUT, private)
    after = note_step(LAYOUT, private, learnt, torch.tensor([0.5, 0.0]), torch.tensor([1.0, 2.0, 0.0]))
    assert read_learnt(LAYOUT, after).tolist() == [pytest.approx([0.6, 1.1, 0.1]), pytest.approx([0.3] * 3)]
