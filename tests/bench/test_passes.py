"""Image passes, counted by arithmetic."""

from __future__ import annotations

import pytest
import torch

from fedctta.bench.passes import count_passes
from fedctta.bench.shapes import Shape

SMALL = Shape("resnet8-w16")
FIRST = 0.444 * 4  # what the first layer takes of a pass of four images; there is no gradient of its inputs


@pytest.mark.parametrize(
    ("adapter", "aggregator", "passes", "firsts"),
    [
        ("none", "local", 1, 0),
        ("bn", "fedavg", 2, 0),
        ("tent", "fedavg", 3, 1),  # forward, backward to inputs, predict
        ("grad", "fedavg", 4, 1),  # backward to weights as well
        ("bbn", "fedavg", 7, 2),
        ("recall", "recall", 1, 0),  # predicts in its adapting pass
        ("tent", "fedtsa", 4, 1),
        ("tent", "kin", 4, 1),  # clients that learn tell the classes they see
    ],
)
def test_passes_of_a_method(adapter, aggregator, passes, firsts):
    assert count_passes(SMALL, adapter, aggregator, 4) == pytest.approx(4 * passes - firsts * FIRST, abs=1)


def test_a_probe_has_images_of_its_own():
    assert count_passes(SMALL, "bn", "fedctta", 4) == 2 * 4 + 16
    assert count_passes(SMALL, "none", "fedctta", 4) == 4  # nothing is compared


def test_the_backward_pass_of_depthwise_convolutions_is_not_taken_for_a_full_one():
    assert count_passes(Shape("efficientnet-lite0"), "grad", "fedavg", 10) == pytest.approx(40, abs=1)


def test_gradients_are_counted_in_inference_mode_too():
    with torch.inference_mode():
        assert count_passes(SMALL, "tent", "fedavg", 3) == 8
