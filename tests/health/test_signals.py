"""The signs of a device's health, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedctta.core.network import Network
from fedctta.health.signals import (
    BATCHES,
    KEEP,
    Views,
    compare,
    distances,
    first_signals,
    forget_checks,
    gain,
    mirror,
    mirror_agreement,
    summarise,
    watch,
)

SURE = torch.tensor([[30.0, 0.0], [0.0, 30.0]])
ROWS = torch.arange(2)


def test_batches_give_entropy_confidence_and_the_most_frequent_class():
    signals = watch(first_signals(2), torch.zeros(4, 2))
    found = summarise(signals)
    assert found["entropy"] == pytest.approx(math.log(2))
    assert found["confidence"] == pytest.approx(0.5)
    assert (found["top_class"], found["top_share"]) == (0, 1.0)
    assert found["accuracy"] is None
    signals = watch(signals, SURE)
    assert summarise(signals)["entropy"] == pytest.approx(math.log(2) / 2, abs=1e-5)
    assert signals.shares.tolist() == pytest.approx([0.75, 0.25])


def test_means_forget():
    signals = first_signals(2)
    for logits in [torch.zeros(4, 2)] * 50 + [SURE] * BATCHES:
        signals = watch(signals, logits)
    assert float(signals.confidence) == pytest.approx(1 - 0.5 * (1 - 1 / BATCHES) ** BATCHES, abs=1e-4)


def test_the_estimate_is_the_chance_that_two_views_agree():
    p = torch.tensor([[0.6, 0.4], [0.9, 0.1]])
    q = torch.tensor([[0.5, 0.5], [0.8, 0.2]])
    assert mirror_agreement(Views(p.log(), q.log())).tolist() == pytest.approx([0.5, 0.74])
    signals = compare(first_signals(2), Views(p.log(), q.log()), Views(SURE, SURE), ROWS)
    found = summarise(signals)
    assert found["accuracy"] == pytest.approx(0.62)
    assert found["source_accuracy"] == pytest.approx(1)
    assert found["disagreement"] == pytest.approx(0.5)
    mean, error = gain(signals)
    assert float(mean) == pytest.approx(-0.38)
    assert float(error) == pytest.approx(0.12 / math.sqrt(2))


def test_checks_are_forgotten_bit_by_bit_or_at_once():
    good, bad = Views(SURE, SURE), Views(SURE, -SURE)
    signals = compare(compare(first_signals(2), good, good, ROWS), bad, good, ROWS)
    assert summarise(signals)["accuracy"] == pytest.approx(KEEP / (1 + KEEP))
    signals = watch(signals, SURE)
    fresh = forget_checks(signals)
    assert summarise(fresh)["accuracy"] is None
    assert fresh.batches == 1


def test_the_source_may_see_fewer_images():
    signals = compare(first_signals(2), Views(SURE, SURE), Views(SURE[1:], SURE[1:]), torch.tensor([1]))
    assert (float(signals.images), float(signals.pairs)) == (2, 1)
    assert summarise(signals)["disagreement"] == 0


def test_logits_that_are_no_classifiers_are_scaled_to_the_sources():
    small = SURE / 100
    plain = compare(first_signals(2), Views(small, small), Views(SURE, SURE), ROWS)
    scaled = compare(first_signals(2), Views(small, small), Views(SURE, SURE), ROWS, calibrated=False)
    assert summarise(plain)["accuracy"] < 0.6
    assert summarise(scaled)["accuracy"] == pytest.approx(1)


def test_images_are_mirrored_and_other_data_are_not():
    x = torch.arange(6.0).view(1, 1, 2, 3)
    assert mirror(x).tolist() == [[[[2, 1, 0], [5, 4, 3]]]]
    assert mirror(x[0]) is not None
    assert torch.equal(mirror(x[0]), x[0])


def test_signals_of_many_devices_are_lifted():
    old = torch.utils._pytree.tree_map(lambda t: t.expand(3, *t.shape), first_signals(2))
    logits = torch.randn(3, 4, 2)
    lifted = torch.func.vmap(watch)(old, logits)
    for i in range(3):
        one = watch(first_signals(2), logits[i])
        assert all(torch.allclose(a[i], b) for a, b in zip(lifted, one, strict=True))
    views = Views(logits, logits.flip(1))
    rows = torch.arange(4).expand(3, 4)
    lifted = torch.func.vmap(compare)(lifted, views, views, rows)
    assert torch.allclose(lifted.gain, torch.zeros(3))


def test_distances_are_zero_at_the_source_and_grow(tiny_module):
    network = Network(tiny_module)
    assert distances(network, network.state) == (0, 0)
    deviation = network.state["1.running_var"].sqrt()
    moved = {
        "1.running_mean": network.state["1.running_mean"] + 2 * deviation,
        "1.weight": 3 * network.state["1.weight"],
    }
    assert distances(network, moved) == pytest.approx((2, 2), abs=1e-5)
    assert distances(network, {}) == (0, 0)
