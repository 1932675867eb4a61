"""Ranges of numbers."""

from __future__ import annotations

import doctest
from dataclasses import dataclass
from math import nan
from typing import Annotated, ClassVar

import pytest

from fedctta import ranges
from fedctta.adapters import Adapter
from fedctta.errors import UserError
from fedctta.ranges import Count, Range, Share


def test_the_examples():
    assert doctest.testmod(ranges).failed == 0


@pytest.mark.parametrize(
    ("limits", "inside", "outside", "message"),
    [
        (Range(0), (0, 5), (-1, nan), "must not be negative"),
        (Range(1), (1, 5), (0, -1), "must be at least 1"),
        (Range(0, open_least=True), (0.1, 5), (0, -1), "must be above 0"),
        (Range(0, 1), (0, 0.5, 1), (-0.1, 1.1, nan), "must lie between 0 and 1"),
        (Range(0, 1, open_least=True), (0.5, 1), (0, 1.1), "must lie above 0 and up to 1"),
        (Range(0, 1, open_most=True), (0, 0.5), (-0.1, 1), "must be at least 0 and below 1"),
        (Range(0, 1, open_least=True, open_most=True), (0.5,), (0, 1), "must lie above 0 and below 1"),
    ],
)
def test_what_lies_outside_is_refused_with_the_range(limits, inside, outside, message):
    for value in inside:
        limits.require(value, "key")
    for value in outside:
        with pytest.raises(UserError, match=f"^key={value} {message}$"):
            limits.require(value, "key")


@dataclass(frozen=True)
class Mine(Adapter):
    """A method of the user's, with ranges in its types."""

    name: ClassVar[str] = "mine"
    share: Share = 0.5
    steps: Count | None = None
    depth: Annotated[int, Range(0, 3)] = 1


def test_a_method_of_the_users_has_its_ranges_checked():
    assert Mine(share=1, steps=2, depth=3).steps == 2
    for values, message in (
        ({"share": 2}, "mine.share=2 must lie between 0 and 1"),
        ({"steps": 0}, "mine.steps=0 must be at least 1"),
        ({"depth": 4}, "mine.depth=4 must lie between 0 and 3"),
    ):
        with pytest.raises(UserError, match=message):
            Mine(**values)
