"""What a lying device says of its domains."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from fedctta.books.lies import tell_lie
from fedctta.books.plausibility import find_possible
from fedctta.books.rows import Layout
from fedctta.core.appearance import NUMBERS
from fedctta.core.randomness import keys
from fedctta.keys import Lie

LAYOUT, KEY = Layout(3), keys(0, 1)[0]


def row():
    """Twenty images, ten of them measured: z = 0.5 and a variance of 1.5 source variances."""
    return LAYOUT.row(
        torch.zeros(1),
        images=torch.tensor(20.0),
        look=torch.full((NUMBERS,), 10.0),
        square=torch.full((NUMBERS,), 25.0),
        scored=torch.tensor(4.0),
        doubt=torch.arange(3.0),
        measured=torch.tensor(10.0),
        moments=10 * torch.tensor([0.5] * 3 + [0.75] * 3),
    )[None]


def means(rows):
    return (LAYOUT.of(rows, "moments") / LAYOUT.of(rows, "measured")[:, None])[0]


@pytest.mark.parametrize("lie", get_args(Lie))
def test_looks_and_counts_are_true_and_moments_are_not(lie):
    told = tell_lie(lie, row(), KEY, 3)
    for name in ("images", "look", "square", "scored", "measured"):
        assert torch.equal(LAYOUT.of(told, name), LAYOUT.of(row(), name))
    assert not torch.equal(means(told), means(row()))
    assert find_possible(LAYOUT, told.numpy()).item() == (lie != "scale")  # which is refused; the others could be true


def test_every_lie_is_what_it_says():
    torch.testing.assert_close(means(tell_lie("sign", row(), KEY, 3)), torch.tensor([-0.5] * 3 + [-0.25] * 3))
    torch.testing.assert_close(means(tell_lie("scale", row(), KEY, 3)), torch.tensor([50.0] * 3 + [75.0] * 3))
    shifted = torch.tensor([5.5] * 3 + [1.5 + 5.5**2 - 1] * 3)
    torch.testing.assert_close(means(tell_lie("statistics", row(), KEY, 3)), shifted)
    assert LAYOUT.of(tell_lie("sign", row(), KEY, 3), "doubt").tolist() == [[2, 1, 0]]


def test_of_nothing_nothing_is_said():
    assert not tell_lie("random", torch.zeros(2, LAYOUT.width), KEY, 3).any()
