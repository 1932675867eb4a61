"""SAR against a plain version with boolean indexing."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from fedctta.adapters.sar import SAR
from fedctta.errors import UserError
from fedctta.network import Network

LIMIT = 0.6


@pytest.fixture
def tiny_module(tiny_module):
    """The tiny model with a head eight times as sure, so that some predictions are reliable and some are not."""
    with torch.no_grad():
        tiny_module[5].weight *= 8
    return tiny_module


def batches(count=4, size=8):
    return torch.rand(count, size, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def entropy(logits):
    p = logits.softmax(1)
    return -(p * p.log()).sum(1)


def plain(module, xs, recover):
    model = copy.deepcopy(module).train()
    norm, running, resets = model[1], None, 0
    optimiser = torch.optim.SGD(norm.parameters(), lr=0.1, momentum=0.9)
    limit = LIMIT * math.log(3)
    for x in xs:
        first = entropy(model(x))
        keep = first < limit
        if not keep.any():
            continue
        slopes = torch.autograd.grad(first[keep].mean(), list(norm.parameters()))
        length = torch.stack([s.square().sum() for s in slopes]).sum().sqrt()
        start = [p.detach().clone() for p in norm.parameters()]
        with torch.no_grad():
            for p, s in zip(norm.parameters(), slopes, strict=True):
                p += 0.05 * s / length
        second = entropy(model(x))
        keep = keep & (second < limit)
        if keep.any():
            loss = second[keep].mean()
            optimiser.zero_grad()
            loss.backward()
        with torch.no_grad():
            for p, s in zip(norm.parameters(), start, strict=True):
                p.copy_(s)
        if not keep.any():
            continue
        optimiser.step()
        value = loss.item()
        running = value if running is None else 0.9 * running + 0.1 * value
        if running < recover:
            model = copy.deepcopy(module).train()
            norm, running, resets = model[1], None, resets + 1
            optimiser = torch.optim.SGD(norm.parameters(), lr=0.1, momentum=0.9)
    return norm.weight.detach(), norm.bias.detach(), resets


def play(adapter, network, xs):
    client = adapter.init(network)
    for x in xs:
        client = adapter.adapt(network, client, x)
    return client


def test_steps_equal_the_plain_version(tiny_module):
    weight, bias, resets = plain(tiny_module, batches(), recover=0.0)
    assert resets == 0
    client = play(SAR(lr=0.1, threshold=LIMIT, recover=0.0), Network(tiny_module), batches())
    torch.testing.assert_close(client.own["1.weight"], weight, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(client.own["1.bias"], bias, rtol=1e-4, atol=1e-6)


def test_a_collapse_brings_the_source_back(tiny_module):
    recover = 1.0  # nearly any entropy counts as a collapse
    weight, bias, resets = plain(tiny_module, batches(), recover)
    assert resets > 0
    client = play(SAR(lr=0.1, threshold=LIMIT, recover=recover), Network(tiny_module), batches())
    torch.testing.assert_close(client.own["1.weight"], weight, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(client.own["1.bias"], bias, rtol=1e-4, atol=1e-6)


def test_nothing_reliable_changes_nothing(tiny_network):
    adapter = SAR(threshold=0.0)
    before = adapter.init(tiny_network)
    after = adapter.adapt(tiny_network, before, batches()[0])
    assert all(torch.equal(before.own[n], after.own[n]) for n in before.own)
    assert all(torch.equal(before.private[n], after.private[n]) for n in before.private)


def test_layers_can_be_left_out(tiny_network):
    assert SAR(skip="1.").init(tiny_network).own == {}
    with pytest.raises(UserError, match=r"sar.skip=1. leaves out every"):
        SAR(skip="1.").check(tiny_network, 8)
