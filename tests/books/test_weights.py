"""How much of a domain's statistics is used."""

from __future__ import annotations

from math import exp, log

import pytest
import torch

from fedctta.books.rows import BINS, Layout
from fedctta.books.weights import Chooser, compare_classes, count_classes, count_shares, find_usual, variety

LAYOUT = Layout(0)
NONE = torch.zeros(1, BINS)
DOUBTS = ([0.3, 0.5, 0.7], [0.7, 0.5, 0.3], [0.7, 0.4, 0.7])


def scored(doubt, unusual=(0.0, 0.0, 0.0), images=20.0):
    sums = {"doubt": images * torch.tensor(doubt), "unusual": images * torch.tensor(unusual)}
    return LAYOUT.row(torch.zeros(1), scored=torch.tensor([images]), **sums)


def seen(*shares):
    """Return what was seen of four classes, in as many domains."""
    return torch.nn.functional.pad(torch.tensor(shares), (0, BINS - 4))


@pytest.mark.parametrize(
    ("doubt", "weight"),
    [
        ([0.3, 0.5, 0.7], 0.0),  # the source is the best
        ([0.7, 0.5, 0.3], 1.0),
        ([0.7, 0.4, 0.7], 0.5),
        ([0.7, 0.4, 0.5], 0.75),  # by the parabola 0.4 at 0.75, and a tie goes to the larger
        ([0.45, 0.4, 0.7], 0.25),  # 0.38 at 0.25
        ([0.3, 0.301, 0.302], 0.0),
    ],
)
def test_the_least_doubt_decides(doubt, weight):
    assert Chooser(tie=0.03, largest=1.0).choose(LAYOUT, scored(doubt)[None], NONE)[0].item() == weight


def test_weights_are_shares_of_the_largest():
    chosen = [Chooser(largest=0.8).choose(LAYOUT, scored(doubt)[None], NONE)[0].item() for doubt in DOUBTS]
    assert chosen == pytest.approx([0, 0.8, 0.4])


def test_where_nothing_was_scored_the_first_guess_stays():
    rows = torch.stack([torch.zeros(LAYOUT.width), scored([0.7, 0.5, 0.3])])
    assert Chooser(start=0.5, largest=1.0).choose(LAYOUT, rows, NONE).tolist() == [0.5, 1.0, 0.5]


def test_a_device_of_few_classes_does_not_trust_its_batch():
    assert variety(seen([5.0, 5.0, 5.0, 5.0])) == 1
    assert variety(seen([9.7, 0.1, 0.1, 0.1])) == 0
    half = variety(seen([8.0, 8.0, 4.0, 0.1]))
    p = torch.tensor([8.0, 8.0, 4.0, 0.1]) / 20.1
    assert half == pytest.approx((exp(-(p * p.log()).sum()) / 4 - 0.5) / 0.4, rel=1e-4)
    first = Chooser(start=0.5).choose(LAYOUT, torch.zeros(1, LAYOUT.width), seen([9.7, 0.1, 0.1, 0.1]))
    assert first.tolist() == [0, 0]


def test_certain_predictions_tell_of_classes_and_class_c_counts_in_bin_c_mod_16():
    sure, torn = torch.eye(20)[17], torch.full((20,), 0.05)
    counted = count_classes(torch.stack([sure, torn]))
    assert counted[1] == pytest.approx(1, abs=1e-4)
    assert counted.sum() == pytest.approx(1, abs=1e-4)


def test_usual_classes_are_those_of_other_domains():
    classes = seen([60.0, 0.0, 0.0, 0.0], [0.0, 15.0, 0.0, 0.0])
    usual, trust = find_usual(classes, torch.tensor([1.0, 0.0]), 4)
    expected = torch.tensor([0.25 + 3, 0.25 + 15, 0.25, 0.25]) / 19
    torch.testing.assert_close(usual[:4], expected)
    assert trust == pytest.approx(15 / 45)
    assert find_usual(classes[:1], torch.ones(1), 4)[1] == 0  # nobody can tell who has been nowhere else


def test_unusual_classes_are_told_by_their_divergence():
    usual = seen([0.7, 0.1, 0.1, 0.1])[0]
    shares = seen([70.0, 10.0, 10.0, 10.0], [0.0, 30.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0])
    told = compare_classes(usual, shares)
    assert told[0] == pytest.approx(0, abs=1e-4)
    q = (30 + 10 * 0.1) / 40  # thirty images, and ten as usual
    others = [(10 * p) / 40 for p in (0.7, 0.1, 0.1)]
    by_hand = q * log(q / 0.1) + sum(x * log(x / p) for x, p in zip(others, (0.7, 0.1, 0.1), strict=True))
    assert told[1] == pytest.approx(by_hand, abs=1e-3)
    assert told[2] == pytest.approx(0, abs=1e-4)  # nothing was predicted yet


def test_shares_count_every_image_alike_in_bin_j_mod_16():
    probabilities = torch.eye(20)[[17, 1, 4]].expand(3, 3, 20)
    assert count_shares(probabilities).tolist() == [[0, 2, 0, 0, 1, *[0] * 11]] * 3


@pytest.mark.parametrize(
    ("doubt", "unusual", "weight"),
    [
        ([0.5, 0.4, 0.3], [0.1, 0.1, 0.3], 0.5),  # more certain, of classes never seen elsewhere
        ([0.5, 0.4, 0.3], [0.1, 0.1, 0.12], 1.0),  # within the slack, and what certainty is worth
        ([0.5, 0.4, 0.3], [0.1, 0.3, 0.1], 1.0),  # what is forbidden in between does not matter
        ([0.3, 0.4, 0.5], [0.3, 0.1, 0.0], 0.0),  # usual classes alone are no reason
        ([1.2, 0.5, 0.9], [0.1, 0.15, 0.1], 0.5),
        ([0.5, 0.4, 0.3], [0.1, 0.5, 0.5], 0.0),
    ],
)
def test_a_weight_must_not_lead_to_unusual_classes(doubt, unusual, weight):
    assert (
        Chooser(tie=0, largest=1.0, slack=0.02, worth=0.3).choose(LAYOUT, scored(doubt, unusual)[None], NONE)[0].item()
        == weight
    )
