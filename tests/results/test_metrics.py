"""Measures of counts, by hand."""

from __future__ import annotations

from math import isnan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedctta.results.metrics import (
    BINS,
    MILLION,
    SCORES,
    absent_classes,
    calibration_error,
    images_since_shift,
    macro_f1,
    major_and_minor,
    mean_class_accuracy,
    mean_iou,
    score,
    share,
)

SEEN, RIGHT, PREDICTED = np.array([10, 0, 40]), np.array([5, 0, 30]), np.array([15, 3, 32])


def test_a_class_nobody_saw_is_left_out_and_counted():
    assert mean_class_accuracy(SEEN, RIGHT) == pytest.approx((0.5 + 0.75) / 2)
    assert absent_classes(SEEN) == 1
    assert isnan(share(RIGHT, SEEN)[1])


def test_f1_by_hand():
    first = 2 * 5 / (2 * 5 + 10 + 5)  # 10 predicted wrongly, 5 missed
    third = 2 * 30 / (2 * 30 + 2 + 10)
    assert macro_f1(SEEN, RIGHT, PREDICTED) == pytest.approx((first + third) / 2)


def test_overlap_by_hand():
    first, third = 5 / (10 + 15 - 5), 30 / (40 + 32 - 30)
    assert mean_iou(SEEN, RIGHT, PREDICTED) == pytest.approx((first + third) / 2)
    assert score("miou", SEEN[None], RIGHT[None], PREDICTED[None]) == mean_iou(SEEN, RIGHT, PREDICTED)
    assert score("dice", SEEN[None], RIGHT[None], PREDICTED[None]) == macro_f1(SEEN, RIGHT, PREDICTED)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_major_and_minor_class_of_every_client(kind):
    seen = np.array([[10, 0, 40], [7, 6, 0]], kind)
    right = np.array([[5, 0, 30], [7, 3, 0]])
    major, minor = major_and_minor(seen, right)
    assert major.tolist() == [0.75, 1.0]
    assert minor.tolist() == [0.5, 0.5]


def test_nothing_seen_is_nan():
    nothing = np.zeros(3, int)
    assert isnan(mean_class_accuracy(nothing, nothing))
    assert isnan(macro_f1(nothing, nothing, nothing))
    assert isnan(mean_iou(nothing, nothing, nothing))
    assert isnan(calibration_error(np.zeros((BINS, 3), np.int64)))
    assert absent_classes(nothing) == 3


@pytest.mark.filterwarnings("error")
def test_the_worst_client_is_one_that_saw_labels():
    assert isnan(score("worst_client", *np.zeros((3, 2, 3), int)))
    assert score("worst_client", np.array([[4], [0], [2]]), np.array([[3], [0], [1]]), np.zeros((3, 1))) == 0.5


def test_the_calibration_error_by_hand():
    bins = np.zeros((BINS, 3), np.int64)
    bins[3] = (10, 2.5 * MILLION, 4)  # confidence 0.25, accuracy 0.4
    bins[14] = (30, 29.7 * MILLION, 27)  # 0.99, 0.9
    assert calibration_error(bins) == pytest.approx((10 * 0.15 + 30 * 0.09) / 40)


@given(arrays(np.int64, (3, 4), elements=st.integers(0, 9)), st.integers(0, 100))
def test_scores_lie_between_0_and_1_or_are_nan(seen, seed):
    random = np.random.default_rng(seed)
    right = random.integers(0, seen + 1)
    predicted = right + random.integers(0, 5, seen.shape)
    for metric in SCORES:
        with np.errstate(all="ignore"):
            value = score(metric, seen, right, predicted) if seen.any() else float("nan")
        assert isnan(value) or 0 <= value <= 1


def test_images_since_a_shift_by_hand():
    domain = np.array([[0, 1], [0, 2], [-1, 2], [0, 2], [1, 0]])
    shown = np.array([[4, 4], [4, 3], [0, 4], [4, 4], [4, 4]])
    assert images_since_shift(domain, shown).tolist() == [[0, 0], [4, 0], [-1, 3], [0, 7], [0, 0]]
