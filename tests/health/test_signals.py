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
    estimate_accuracy,
    first_signals,
    forget_checks,
    gain,
    look,
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
    assert float(mean) == pytest.approx(-0.38 + 1 / 2)
    assert float(error) == pytest.approx(0.12 / math.sqrt(2))


def test_the_estimate_follows_the_confidence_between_checks():
    p = torch.tensor([[0.6, 0.4], [0.9, 0.1]])
    views = Views(p.log(), p.log())
    signals = watch(compare(first_signals(2), views, views, ROWS), p.log())
    assert summarise(signals)["accuracy"] == pytest.approx((0.52 + 0.82) / 2)
    signals = watch(signals, torch.tensor([[0.8, 0.2]]).log())  # mean confidence 0.775 now, 0.75 on the check
    assert summarise(signals)["accuracy"] == pytest.approx(0.67 + 0.025)
    assert summarise(signals)["source_accuracy"] == pytest.approx(0.67)
    assert summarise(signals, "source")["accuracy"] == pytest.approx(0.67)


def test_checks_are_forgotten_bit_by_bit_and_comparisons_at_once():
    good, bad = Views(SURE, SURE), Views(SURE, -SURE)
    signals = compare(compare(first_signals(2), good, good, ROWS), bad, good, ROWS)
    assert summarise(signals)["accuracy"] == pytest.approx(KEEP / (1 + KEEP))
    fresh = forget_checks(signals)
    assert (float(fresh.pairs), float(fresh.gain)) == (0, 0)
    assert summarise(fresh)["disagreement"] is None
    assert summarise(fresh)["accuracy"] == summarise(signals)["accuracy"]


def test_many_images_of_old_checks_do_not_outvote_a_new_one():
    many, two = Views(SURE.repeat(500, 1), SURE.repeat(500, 1)), Views(SURE, SURE)
    signals = compare(first_signals(2), many, many, torch.arange(1000))
    signals = compare(signals, Views(SURE, -SURE), two, ROWS)
    assert float(gain(signals)[0]) == pytest.approx(KEEP / 1000 + (1 - KEEP) * (1 / 2 - 1))
    assert float(signals.pairs) == pytest.approx(2 / (1 - KEEP))


def test_the_source_is_checked_alone():
    good, bad = Views(SURE, SURE), Views(SURE, -SURE)
    before = compare(first_signals(2), good, good, ROWS)
    signals = look(before, bad)
    assert summarise(signals)["source_accuracy"] == pytest.approx(KEEP / (1 + KEEP))
    assert all(
        torch.equal(new, old)
        for name, new, old in zip(signals._fields, signals, before, strict=True)
        if name not in ("source", "shown")
    )


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
    assert torch.allclose(lifted.gain, torch.ones(3))
    assert torch.func.vmap(estimate_accuracy)(lifted).shape == (3,)
    assert torch.allclose(torch.func.vmap(look)(lifted, views).shown, torch.tensor(4 * (1 + KEEP)))


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
