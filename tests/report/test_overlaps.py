from __future__ import annotations

import doctest

import numpy as np
import pytest

from fedctta.report import overlaps
from fedctta.report.overlaps import coincidence, covered, near_dots, step_aside, together

RAMP = np.linspace(0.0, 100.0, 11)
CURVES = {
    "a": RAMP,
    "b": RAMP[::-1].copy(),
    "c": RAMP.copy(),
    "d": RAMP + 0.4,  # of a range of 100.4: less than a line is wide
    "e": RAMP + 2.0,
}


def test_curves_that_lie_on_one_another_are_found_and_named() -> None:
    assert together(CURVES) == [["a", "c", "d"]]
    assert coincidence(CURVES) == "a = c ≈ d"


def test_gaps_are_part_of_a_curve() -> None:
    gap = np.where(RAMP == 50, np.nan, RAMP)
    assert together({"a": gap, "b": gap.copy(), "c": RAMP}) == [["a", "b"]]
    assert together({"a": RAMP, "b": RAMP[:5]}) == []
    assert coincidence({"a": np.full(3, np.nan)}) == ""


def test_dots_at_one_place_step_aside_and_others_stay() -> None:
    assert step_aside([70.0, 50.0, 70.1, np.nan, 70.0], near=0.5) == pytest.approx([-0.2, 0, 0, 0, 0.2])
    assert step_aside([1.0, 2.0], near=0.5) == [0, 0]
    crowd = step_aside([3.0] * 9, near=0.5)
    assert max(crowd) == pytest.approx(0.4)
    assert len(set(np.round(crowd, 6))) == 9


def test_a_dot_knows_how_many_lie_on_it() -> None:
    values = np.array([[1.0, 5.0], [1.0, np.nan], [1.05, 5.0]])
    assert covered(values, near=0.1).tolist() == [[2, 1], [1, 0], [0, 0]]


def test_equal_dots_are_near_whatever_the_range() -> None:
    assert near_dots(np.array([[5.0, 5.0]])) > 0
    assert near_dots(np.array([[0.0, 100.0], [np.nan, 3.0]])) == pytest.approx(1)


def test_examples() -> None:
    assert doctest.testmod(overlaps) == (0, 1)
