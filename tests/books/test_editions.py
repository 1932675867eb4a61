"""Only what is new is sent."""

from __future__ import annotations

import pytest
import torch

from fedctta.books.editions import Answer, has_news, take_up
from fedctta.books.rows import Layout
from fedctta.core.appearance import NUMBERS

LAYOUT = Layout(2)


def sums(images=100.0, moment=1.0, look=2.0):
    n = torch.tensor([images])
    return LAYOUT.row(
        n, images=n, measured=n, look=n * torch.full((NUMBERS,), look), moments=n * torch.full((4,), moment)
    ).numpy()


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (sums(), False),
        (sums(images=110), False),
        (sums(images=113), True),
        (sums(images=87), True),
        (sums(moment=1.05), False),
        (sums(moment=1.07), True),
        (sums(look=2.2), True),
    ],
)
def test_small_changes_are_no_news(new, expected):
    assert has_news(LAYOUT, sums(), new) == expected


def test_a_domain_that_nobody_knew_is_news():
    assert has_news(LAYOUT, 0 * sums(), sums())


def test_a_device_keeps_what_it_has_and_takes_up_what_is_new():
    """The first domain is new, the second was in another place, the third is gone."""
    book = torch.tensor([[1.0], [2.0], [3.0], [0.0]])
    answer = Answer(
        torch.tensor([11, 12, 0, 0]),
        torch.tensor([9, 5, 0, 0]),
        torch.zeros(0),
        torch.tensor([0]),
        torch.tensor([[7.0]]),
        1,
    )
    after, edition = take_up(book, torch.tensor([4, 6, 5, 0]), 0.5, answer)
    assert after.squeeze(1).tolist() == [7, 1.5, 0, 0]
    assert edition.tolist() == [9, 5, 0, 0]
