"""EATA against a plain version with boolean indexing and torch's Adam."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch.nn import functional as F

from fedctta.adapters.eata import EATA, ETA, RDumb
from fedctta.core.clients import by_loop
from fedctta.core.network import Network
from fedctta.runs.build import choose_parts, federate
from fedctta.runs.cache import Cache
from fedctta.runs.datasets import public_images
from fedctta.runs.settings import single

LIMIT, MARGIN = 0.6, 0.97  # chosen so that some images pass and some do not


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


def plain(module, xs, fisher=None, weight=0.0):
    """EATA as one would write it for a single model; returns scale, shift and how many images passed."""
    model, source = copy.deepcopy(module).train(), copy.deepcopy(module)
    norm, mean, passed = model[1], None, []
    optimiser = torch.optim.Adam(norm.parameters(), lr=1e-2)
    limit = LIMIT * math.log(3)
    for x in xs:
        logits = model(x)
        h, p = entropy(logits), logits.detach().softmax(1)
        keep = h < limit
        if mean is not None:
            keep &= F.cosine_similarity(mean[None], p, dim=1).abs() < MARGIN
        passed.append(int(keep.sum()))
        if not keep.any():
            continue
        mean = p[keep].mean(0) if mean is None else 0.9 * mean + 0.1 * p[keep].mean(0)
        loss = (torch.exp(limit - h[keep].detach()) * h[keep]).mean()
        for name, value in (fisher or {}).items():
            loss = loss + weight * (value * (getattr(norm, name) - getattr(source[1], name)) ** 2).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return norm.weight.detach(), norm.bias.detach(), passed


def play(adapter, network, xs, learnt=None):
    client = adapter.init(network)
    client = client._replace(private={**client.private, **(learnt or {})})
    for x in xs:
        client = adapter.adapt(network, client, x)
    return client


def test_eta_equals_the_plain_version(tiny_module):
    weight, bias, passed = plain(tiny_module, batches())
    assert len(set(passed)) > 1
    assert max(passed) > 0
    client = play(ETA(lr=1e-2, threshold=LIMIT, margin=MARGIN), Network(tiny_module), batches())
    torch.testing.assert_close(client.own["1.weight"], weight, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(client.own["1.bias"], bias, rtol=1e-4, atol=1e-6)


def test_the_anchor_is_the_fisher_information(tiny_module):
    network, adapter = Network(tiny_module), EATA(lr=1e-2, threshold=LIMIT, margin=MARGIN, fisher=50.0)
    assert adapter.source_images == 2000
    learnt = adapter.study(network, batches(1, 12)[0], 12)
    model = copy.deepcopy(tiny_module).train()
    logits = model(batches(1, 12)[0])
    F.cross_entropy(logits, logits.argmax(1)).backward()
    torch.testing.assert_close(learnt["fisher.1.weight"], model[1].weight.grad.square())
    fisher = {"weight": learnt["fisher.1.weight"], "bias": learnt["fisher.1.bias"]}
    weight, bias, _ = plain(tiny_module, batches(), fisher, 50.0)
    client = play(adapter, network, batches(), learnt)
    torch.testing.assert_close(client.own["1.weight"], weight, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(client.own["1.bias"], bias, rtol=1e-4, atol=1e-6)


def test_a_batch_in_which_nothing_passes_changes_nothing(tiny_network):
    adapter = ETA(threshold=0.0)
    before = adapter.init(tiny_network)
    after = adapter.adapt(tiny_network, before, batches()[0])
    assert all(torch.equal(before.own[n], after.own[n]) for n in before.own)
    assert all(torch.equal(before.private[n], after.private[n]) for n in before.private)


def test_rdumb_starts_over(tiny_network):
    every, x = RDumb(lr=0.1, threshold=2.0, margin=2.0, every=2), batches()
    client = play(every, tiny_network, x[:3])
    again = play(every, tiny_network, x[2:3])
    assert all(torch.equal(client.own[n], again.own[n]) for n in again.own)
    assert int(client.private["batches"]) == 3
    kept = {"fisher.1.weight": torch.ones(4), "fisher.1.bias": torch.ones(4)}
    assert play(RDumb(fisher=1.0, every=1), tiny_network, x[:2], kept).private.keys() >= kept.keys()
    assert ETA().source_images == RDumb().source_images == 0


@pytest.mark.parametrize(("images", "batch"), [(25, 10), (40, 10), (40, 8)])
def test_the_fisher_information_is_a_mean_over_batches_of_the_clients_size(images, batch, tiny_network):
    x = torch.rand(images, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    whole = EATA().study(tiny_network, x, batch)["fisher.1.bias"]
    parts = [EATA().study(tiny_network, part, len(part))["fisher.1.bias"] for part in x.split(batch)]
    torch.testing.assert_close(whole, torch.stack(parts).mean(0))


@pytest.mark.parametrize("batch", [4, 8])
def test_a_run_studies_batches_of_its_own_size(batch):
    words = {"dataset": "shapes-c", "adapter": "eata", "eata.images": 16, "batch": batch, "stream": "iid", "slots": 1}
    experiment = single(words)
    federation = federate(experiment, choose_parts(experiment, torch.device("cpu"), Cache()), by_loop)
    images = public_images(experiment, None, 16, torch.device("cpu"))
    expected = federation.adapter.study(federation.network, images, batch)
    found = federation.start().clients.private
    assert all(torch.equal(found[name][0], fisher) for name, fisher in expected.items())
    assert expected


def test_rdumb_starts_over_before_it_predicts(tiny_network):
    adapter, x = RDumb(lr=0.1, threshold=2.0, margin=2.0, every=2), batches()
    fresh = adapter.init(tiny_network)
    one, two = play(adapter, tiny_network, x[:1]), play(adapter, tiny_network, x[:2])
    expected = adapter.predict(tiny_network, fresh, x[2])
    torch.testing.assert_close(adapter.predict_before(tiny_network, two, x[2]), expected)
    assert (adapter.predict_before(tiny_network, one, x[2]) - expected).abs().max() > 1e-3
