"""Learning by domain."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedctta.adapters.common.inner import METHODS, PREFIX, WHOLE, Learner
from fedctta.adapters.common.optimisers import adam
from fedctta.adapters.recall import Recall
from fedctta.core.clients import Client
from fedctta.core.network import Network
from fedctta.core.norms import refreshed, stored
from fedctta.core.tensors import lay_out, under
from fedctta.errors import UserError


def images(seed=0, count=8):
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_step_is_that_of_the_method_with_the_statistics_given(name, tiny_network):
    learner = Learner(METHODS[name], 1e-2)
    private = learner.start(tiny_network) | (
        learner.study(tiny_network, images(5, 16), 8) if learner.method.source_images else {}
    )
    nothing = torch.zeros_like(lay_out(learner.weights(tiny_network)))
    step, after = learner.step(tiny_network, nothing, private, images(), stored)
    assert step.shape == nothing.shape
    assert after.keys() == private.keys()
    moved = learner.apply(tiny_network, nothing + 1)
    assert all(torch.equal(t, tiny_network.state[n] + 1) for n, t in moved.items())


def test_tents_step_by_hand(tiny_network):
    learner, tent = Learner(METHODS["tent"], 1e-2), METHODS["tent"]
    own = learner.weights(tiny_network)
    nothing = torch.zeros_like(lay_out(own))
    private = learner.start(tiny_network)
    gradient = tent.slope(tiny_network, Client(own, {}), images(), refreshed()).gradient
    new, _ = adam(own, gradient, under(PREFIX, private), 1e-2)
    step, _ = learner.step(tiny_network, nothing, private, images(), refreshed())
    torch.testing.assert_close(step, lay_out(new) - lay_out(own))


def learnt(recall, network, client):
    return recall._layout(network).of(client.private["part"], "learnt")


def test_what_is_learnt_is_remembered_by_domain(tiny_network):
    recall = Recall(domains=3, inner="tent", lr=1e-2)
    client = recall.init(tiny_network)
    with torch.no_grad():
        for t in range(3):
            client, _ = recall.adapt_and_predict(tiny_network, client, images(t))
        noise = learnt(recall, tiny_network, client).clone()
        assert noise[0].abs().max() > 0
        assert noise[1:].abs().max() == 0
        stripes = torch.linspace(0, 1, 16).expand(8, 3, 16, 16) * 0.9 + 0.05 * images()
        client, _ = recall.adapt_and_predict(tiny_network, client, stripes)
    after = learnt(recall, tiny_network, client)
    torch.testing.assert_close(after[0], noise[0])  # untouched in another domain
    assert after[1].abs().max() > 0


def test_a_model_without_batchnorm_recalls_what_was_learnt():
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )
    network, recall = Network(module), Recall(domains=2, inner="tent", lr=1e-2)
    with pytest.raises(UserError, match=r"needs BatchNorm layers.* use recall\.inner=tent"):
        Recall().check(network, 4)
    recall.check(network, 1)
    client = recall.init(network)
    with torch.no_grad():
        client, first = recall.adapt_and_predict(network, client, images())
        torch.testing.assert_close(first, network({}, images()).logits)
        client, second = recall.adapt_and_predict(network, client, images())
        assert recall.review(network, client, images()) is client
    assert not torch.allclose(first, second)


def test_a_rate_without_a_method_is_refused():
    with pytest.raises(UserError, match=r"recall\.lr=0\.1 has no effect"):
        Recall(lr=0.1)


@pytest.mark.parametrize("name", WHOLE)
def test_all_weights_are_learnt_by_domain_if_asked(name, tiny_network):
    recall = Recall(domains=2, inner=name, trains="all", lr=1e-2)
    client = recall.init(tiny_network)
    with torch.no_grad():
        client, _ = recall.adapt_and_predict(tiny_network, client, images())
    found = learnt(recall, tiny_network, client)
    assert found.shape == (2, sum(t.numel() for t in tiny_network.parameters.values()))
    weights = recall._own(tiny_network, recall._layout(tiny_network), client.private)
    assert weights.keys() == tiny_network.parameters.keys()
    if name == "tent":  # ETA finds no reliable image here
        assert all((weights[n] != tiny_network.state[n]).any() for n in weights)


@pytest.mark.parametrize("inner", ["none", "sar", "eata"])
def test_who_cannot_learn_all_weights_says_so(inner):
    with pytest.raises(UserError, match=r"recall\.trains=all needs recall\.inner=tent or eta"):
        Recall(inner=inner, trains="all")
