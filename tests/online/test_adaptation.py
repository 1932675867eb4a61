"""One client without a server, step by step, beside the adapter's own functions."""

from __future__ import annotations

import pytest
import torch

from fedctta.adapters import adapters
from fedctta.core.clients import Client
from fedctta.errors import UserError
from fedctta.online.adaptation import Adaptation, _finite


def images(seed, count=4):
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def tent(tiny_network):
    return Adaptation(tiny_network, adapters.create("tent"), guard="off", check=0)


@torch.no_grad()
def test_answers_are_the_adapters_own(tent, tiny_network):
    adapter, client = adapters.create("tent"), adapters.create("tent").init(tiny_network)
    for seed in range(3):
        client = adapter.adapt(tiny_network, client, images(seed))
        torch.testing.assert_close(tent.answer(images(seed)), adapter.predict(tiny_network, client, images(seed)))
    assert tent.batches == tent.health.batches == 3


@torch.no_grad()
def test_what_is_not_finite_is_answered_by_the_source_and_counted(tent, tiny_network):
    before, x = tent.client, images(0)
    x[0, 0, 0, 0] = torch.nan
    torch.testing.assert_close(tent.answer(x), tiny_network({}, x).logits, equal_nan=True)
    assert tent.client is before
    assert (tent.skipped, tent.batches) == (1, 0)


@torch.no_grad()
def test_noise_is_drawn_anew_for_every_batch(tiny_network):
    noisy = Adaptation(tiny_network, adapters.create("recall").with_noise(1.0), guard="off", check=0)
    drawn = []
    for seed in range(2):
        noisy.answer(images(seed))
        assert float(noisy.client.private["shared.given"]) == 1
        drawn.append(noisy.client.private["shared.fresh"])
    assert not torch.equal(*drawn)
    again = Adaptation(tiny_network, noisy.adapter, guard="off", check=0)
    again.answer(images(0))
    assert not torch.equal(again.client.private["shared.fresh"], drawn[0])


def test_reset_is_the_beginning(tent):
    first = tent.answer(images(0))
    tent.answer(images(1))
    tent.reset()
    assert torch.equal(tent.answer(images(0)), first)


def test_checks_that_nothing_can_act_on_are_refused(tiny_network):
    with pytest.raises(UserError, match="check=-1 must not be negative"):
        Adaptation(tiny_network, adapters.create("bn"), check=-1)
    with pytest.raises(UserError, match="guard='freeze' acts on what checks find"):
        Adaptation(tiny_network, adapters.create("bn"), check=0, guard="freeze")


def test_infinities_that_a_method_keeps_on_purpose_are_fine():
    logits, infinite, nan = torch.zeros(2, 3), torch.tensor([torch.inf]), torch.tensor([torch.nan])
    assert _finite(
        Client({"a": torch.ones(2)}, {"entropy": infinite, "count": torch.ones(1, dtype=torch.int64)}), logits
    )
    assert _finite(Client({"a": torch.full((100,), 1000.0, dtype=torch.float16)}), logits)
    assert not _finite(Client({"a": infinite}), logits)
    assert not _finite(Client({"a": torch.ones(2)}, {"b": nan}), logits)
    assert not _finite(Client({}), logits + torch.nan)
