"""How much of a domain's statistics is used."""

from __future__ import annotations

import pytest
import torch

from fedctta.books.rows import BINS, WEIGHTS, Layout
from fedctta.books.weights import Chooser

LAYOUT = Layout(0)
EVEN = [0.25, 0.25, 0.25, 0.25]


def scored(entropy, shares=(EVEN,) * 5, images=20.0):
    classes = torch.zeros(len(WEIGHTS), BINS)
    classes[:, :4] = torch.tensor(shares)
    counts = {"entropy": images * torch.tensor(entropy), "classes": images * classes}
    return LAYOUT.row(torch.zeros(1), scored=torch.tensor([images]), **counts)


@pytest.mark.parametrize(
    ("entropy", "weight"),
    [
        ([0.3, 0.4, 0.5, 0.6, 0.7], 0.0),  # the source is most certain
        ([0.7, 0.6, 0.5, 0.4, 0.3], 1.0),
        ([0.7, 0.5, 0.4, 0.5, 0.6], 0.5),
        ([0.7, 0.5, 0.400, 0.409, 0.6], 0.75),  # a tie: the larger one
        ([0.300, 0.301, 0.302, 0.303, 0.304], 0.0),
    ],
)
def test_the_least_entropy_decides(entropy, weight):
    assert Chooser(tie=0.03).choose(LAYOUT, scored(entropy)[None]).item() == weight


def test_weights_that_give_all_to_one_class_are_left_out():
    shares = [EVEN, EVEN, EVEN, [0.5, 0.2, 0.2, 0.1], [1.0, 0.0, 0.0, 0.0]]
    row = scored([0.7, 0.6, 0.5, 0.4, 0.0], shares)
    assert Chooser(collapse=0.3).choose(LAYOUT, row[None]).item() == 0.75
    assert Chooser(collapse=0.2).choose(LAYOUT, row[None]).item() == 0.5
    assert Chooser(collapse=1.0).choose(LAYOUT, row[None]).item() == 1.0


def test_a_source_that_has_collapsed_itself_is_no_measure():
    shares = [[0.9, 0.1, 0.0, 0.0], EVEN, EVEN, EVEN, [0.1, 0.7, 0.1, 0.1]]
    row = scored([0.7, 0.6, 0.5, 0.4, 0.3], shares)
    assert Chooser(collapse=0.3).choose(LAYOUT, row[None]).item() == 1.0  # class 1 gains 0.6, but all get more diverse


def test_where_nothing_was_scored_the_first_guess_stays():
    rows = torch.stack([torch.zeros(LAYOUT.width), scored([0.7, 0.6, 0.5, 0.4, 0.3])])
    assert Chooser(start=0.5).choose(LAYOUT, rows).tolist() == [0.5, 1.0]
