"""Each measure of uncertainty by hand, and the running scale against numpy."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedctta.aggregators.common.uncertainty import (
    Measure,
    disagreement,
    dropped_out,
    entropy,
    key_of,
    of_members,
    running,
    running_start,
    uncertainty,
    view,
)
from fedctta.core.clients import by_loop, by_vmap, stack
from fedctta.core.network import Network
from fedctta.core.norms import refreshed, stored


def batch(seed=0, size=5):
    return torch.rand(size, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def test_entropy_and_disagreement_by_hand():
    p = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
    q = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [0.5, 0.3, 0.2]])
    last = -(0.2 * math.log(0.2) + 0.3 * math.log(0.3) + 0.5 * math.log(0.5))
    torch.testing.assert_close(entropy(p), torch.tensor([math.log(2), 0.0, last]))
    torch.testing.assert_close(disagreement(p, q), torch.tensor([0.0, 1.0, 0.3]))


def test_entropy_and_energy_of_a_model(tiny_network):
    x = batch()
    logits = tiny_network({}, x, refreshed()).logits
    p = logits.softmax(1)
    found, classes = uncertainty("entropy", tiny_network, {}, x)
    assert classes == 3
    torch.testing.assert_close(found, -(p * p.log()).sum(1).mean())
    found, _ = uncertainty("energy", tiny_network, {}, x)
    torch.testing.assert_close(found, -logits.exp().sum(1).log().mean())


def test_who_owns_statistics_is_judged_with_them(tiny_network):
    x, own = batch(), tiny_network.statistics
    expected = entropy(tiny_network(own, x, stored).logits.softmax(1)).mean()
    torch.testing.assert_close(uncertainty("entropy", tiny_network, own, x)[0], expected)
    assert uncertainty("entropy", tiny_network, {}, x)[0] != expected


def test_consistency_compares_with_the_view(tiny_network):
    x = batch()
    p, q = (tiny_network({}, images, refreshed()).logits.softmax(1) for images in (x, view(x, key_of(x))))
    torch.testing.assert_close(uncertainty("consistency", tiny_network, {}, x)[0], (p - q).abs().sum(1).mean() / 2)


def test_a_view_changes_images_and_moves_no_pixel():
    x = batch()
    seen = view(x, key_of(x))
    assert seen.aminmax().min >= 0
    assert seen.aminmax().max <= 1
    assert not torch.allclose(seen, x)
    together = torch.corrcoef(torch.stack([x.flatten(), seen.flatten()]))[0, 1]
    assert together > 0.95
    assert view(torch.rand(2, 1, 4, 6), torch.tensor(3)).shape == (2, 1, 4, 6)


def test_dropout_drops_a_fifth_and_is_right_in_the_mean():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Network(nn.Linear(500, 2))
    own = {"weight": torch.stack([torch.full((500,), 1e-3), torch.zeros(500)]), "bias": torch.tensor([0.1, 0.0])}
    p = dropped_out(network, own, torch.ones(40, 500), torch.tensor(7))
    plain = F.linear(torch.ones(1, 500), own["weight"], own["bias"]).softmax(1)
    torch.testing.assert_close(p.mean(0), plain[0], atol=1e-3, rtol=0)
    spread = p[:, 0].std() * math.sqrt(10) / (plain[0, 0] * plain[0, 1])  # of one pass, in logits
    assert spread.item() == pytest.approx(1e-3 * math.sqrt(500 * 0.2 / 0.8), rel=0.3)


def test_dropout_uses_the_clients_own_classifier(tiny_network):
    x = batch()
    even = {"5.weight": torch.zeros(3, 4), "5.bias": torch.zeros(3)}
    assert uncertainty("dropout", tiny_network, even, x)[0].item() == pytest.approx(math.log(3))
    assert uncertainty("dropout", tiny_network, {}, x)[0] < math.log(3) - 1e-4


def test_members_differ_by_their_own_tensors_only(tiny_network):
    x = batch()
    alone = tiny_network({}, x, stored).logits.softmax(1)
    torch.testing.assert_close(of_members(tiny_network, {}, x, stored, torch.tensor(1)), alone)
    together = of_members(tiny_network, tiny_network.parameters, x, stored, torch.tensor(1))
    assert 1e-5 < (together - alone).abs().max() < 0.1
    zeros = {name: torch.zeros_like(t) for name, t in tiny_network.parameters.items()}  # the noise is relative
    assert uncertainty("ensemble", tiny_network, zeros, x)[0].item() == pytest.approx(math.log(3))


@pytest.mark.parametrize("measure", get_args(Measure))
def test_a_batch_gives_one_number_always_the_same(measure, tiny_network):
    x = batch()
    first, again = (uncertainty(measure, tiny_network, tiny_network.parameters, x)[0] for _ in range(2))
    assert first.shape == ()
    assert first.isfinite()
    assert torch.equal(first, again)


@pytest.mark.parametrize("measure", get_args(Measure))
def test_lifting_does_not_change_the_number(measure, tiny_network):
    own, x = stack(tiny_network.parameters, 3), torch.stack([batch(seed) for seed in range(3)])

    def of_one(own, x):
        return uncertainty(measure, tiny_network, own, x)[0]

    with torch.no_grad():
        numbers = by_vmap(of_one)(own, x)
        torch.testing.assert_close(numbers, by_loop(of_one)(own, x))
    assert len(set(numbers.tolist())) == 3


@pytest.mark.parametrize("measure", get_args(Measure))
def test_a_dense_model_is_as_unsure_as_its_pixels(measure):
    layer = nn.Conv2d(3, 4, 1)
    network, x = Network(layer, dense=True), batch(size=2)
    found, classes = uncertainty(measure, network, network.parameters, x)
    assert classes == 4
    assert found.isfinite()
    even, _ = uncertainty("dropout", network, {name: torch.zeros_like(t) for name, t in network.parameters.items()}, x)
    assert even.item() == pytest.approx(math.log(4))


def test_keys_differ_from_batch_to_batch_and_not_by_memory_layout():
    x = batch()
    assert key_of(x) == key_of(x.to(memory_format=torch.channels_last))
    assert len({int(key_of(batch(seed))) for seed in range(20)} | {int(key_of(x.flip(0)))}) == 21


def test_the_running_scale_is_that_of_all_numbers_so_far():
    random = np.random.default_rng(0)
    memory, seen = running_start(), []
    for _ in range(4):
        sigma = random.normal(-8, 2, 5).astype(np.float32)
        weight = np.array([1, 1, 0, 1, 1], dtype=np.float32)
        seen += sigma[weight > 0].tolist()
        scaled, memory = running(torch.from_numpy(sigma), torch.from_numpy(weight), memory)
        expected = np.maximum(0, 1 + (sigma - np.mean(seen)) / np.std(seen))
        np.testing.assert_allclose(scaled.numpy()[weight > 0], expected[weight > 0], rtol=1e-4, atol=1e-5)
    assert {name: tensor.shape for name, tensor in memory.items()} == dict.fromkeys(("count", "mean", "squares"), ())


def test_the_running_scale_counts_by_weight():
    _, halves = running(torch.tensor([1.0, 4.0]), torch.tensor([1.0, 0.5]), running_start())
    assert halves["mean"].item() == pytest.approx(2)
    assert halves["squares"].item() == pytest.approx(1 + 0.5 * 4)


def test_without_spread_everything_is_one():
    scaled, memory = running(torch.tensor([-7.3, torch.nan]), torch.tensor([1.0, 0.0]), running_start())
    assert scaled[0].item() == pytest.approx(1, abs=0.02)
    assert scaled.isfinite().all()
    same, _ = running(torch.full((3,), -7.3), torch.ones(3), memory)
    torch.testing.assert_close(same, torch.ones(3), atol=0.02, rtol=0)
    nobody, after = running(torch.full((2,), torch.nan), torch.zeros(2), memory)
    assert nobody.isfinite().all()
    assert after == memory
    empty, _ = running(torch.zeros(2), torch.zeros(2), running_start())
    assert empty.tolist() == [1, 1]
