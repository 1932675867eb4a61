"""The book that a device carries."""

from __future__ import annotations

import pytest
import torch

from fedctta.books.notebook import Notebook
from fedctta.books.rows import Layout
from fedctta.core.appearance import NUMBERS

LAYOUT = Layout(0)


def see(notebook, private, level, seed=0):
    """Add a batch of ten that looks like this."""
    looks = level + 0.1 * torch.randn(10, NUMBERS, generator=torch.Generator().manual_seed(seed))
    private, page = notebook.recognise(LAYOUT, private, looks)
    row = LAYOUT.row(looks, images=looks.new_full((1,), 10), look=looks.sum(0), square=looks.square().sum(0))
    return notebook.add(private, row, page.part)


def open_book(notebook):
    return notebook.start(LAYOUT.width, torch.device("cpu"))


def test_looks_that_come_again_are_one_domain_and_others_another():
    notebook = Notebook(domains=3)
    private = open_book(notebook)
    for t, level in enumerate([0, 0, 5, 0, 5]):
        private = see(notebook, private, level, t)
    images = LAYOUT.of(private["part"], "images")
    assert sorted(images.round().tolist()) == [0, 20, 30]
    assert (private["name"] != 0).sum() == 2
    assert private["time"] == 50


def test_a_full_book_forgets_the_least_known_domain():
    notebook = Notebook(domains=2)
    private = open_book(notebook)
    for t, level in enumerate([0, 0, 5, 10]):
        private = see(notebook, private, level, t)
    means = LAYOUT.of(private["part"], "look")[:, 0] / LAYOUT.of(private["part"], "images")
    assert sorted(means.round().tolist()) == [0, 10]


def test_what_is_seen_moves_together_where_places_meet():
    notebook = Notebook(domains=3, half_life=40.0)
    private = open_book(notebook)
    for t, level in enumerate([0, 5, 5]):
        private = see(notebook, private, level, t)
    move = torch.zeros(3, 3, dtype=torch.bool)
    move[2, :2] = True  # both domains are the third
    moved = notebook.move(private, move)
    images = LAYOUT.of(moved["part"], "images")
    own = 10 * 2 ** -(10 / 40) + 10
    assert images.tolist() == pytest.approx([0, 0, 10 * 2 ** -(20 / 40) + own], rel=1e-4)
    assert moved["belief"][2] == pytest.approx(private["belief"][:2].sum().item())
