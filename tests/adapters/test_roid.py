"""ROID: its formulas by hand, and a step against the published way with the images it keeps picked out."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedctta.adapters.common.augmentation import augment
from fedctta.adapters.roid import ROID, corrected, soft_likelihood_ratio, stretched, worth
from fedctta.core.clients import Client
from fedctta.core.network import Network
from fedctta.core.norms import refreshed
from fedctta.core.randomness import keys
from fedctta.errors import UserError


def images(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


def logits_of(*rows):
    return torch.tensor(rows).log()


def test_the_soft_likelihood_ratio_by_hand():
    logits = logits_of([0.75, 0.25], [0.9999, 0.0001])
    first = -(0.75 * math.log(3 + 1e-5) + 0.25 * math.log(1 / 3 + 1e-5))
    second = -(0.99 * math.log(99 + 1e-5) + 0.0001 * math.log(0.0001 / 0.9999 + 1e-5))
    assert soft_likelihood_ratio(logits).tolist() == pytest.approx([first, second], rel=1e-5)


def test_weights_by_hand():
    logits, mean = logits_of([0.9, 0.1], [0.5, 0.5], [0.3, 0.7], [0.1, 0.9]), torch.tensor([0.8, 0.2])
    p = [(0.9, 0.1), (0.5, 0.5), (0.3, 0.7), (0.1, 0.9)]
    d = [1 - (0.8 * a + 0.2 * b) / (math.hypot(0.8, 0.2) * math.hypot(a, b)) for a, b in p]
    c = [a * math.log(a) + b * math.log(b) for a, b in p]
    d, c = ([(v - min(values)) / (max(values) - min(values)) for v in values] for values in (d, c))
    kept = [v >= sum(d) / 4 for v in d]
    expected = [math.exp(a * b * 3) if keep else 0.0 for a, b, keep in zip(d, c, kept, strict=True)]
    assert kept == [False, False, True, True]
    assert worth(logits, mean, 1 / 3).tolist() == pytest.approx(expected, rel=1e-4)


def test_equal_images_count_alike():
    logits = logits_of([0.7, 0.3]).expand(4, 2)
    assert worth(logits, torch.tensor([0.5, 0.5]), 1 / 3).tolist() == [1.0] * 4
    assert stretched(torch.tensor([2.0, 4.0, 3.0])).tolist() == [0.0, 1.0, 0.5]
    assert stretched(torch.tensor([2.0, 2.0])).tolist() == [0.0, 0.0]


def test_the_prior_correction_by_hand():
    logits = logits_of([0.8, 0.2], [0.6, 0.4], [0.7, 0.3])  # prior (0.7, 0.3), s = max(1/3, 1/2) / 0.7
    s = 0.5 / 0.7
    factor = torch.tensor([(0.7 + s) / (1 + 2 * s), (0.3 + s) / (1 + 2 * s)])
    torch.testing.assert_close(corrected(logits), logits * factor)


def published_step(module, x, mean, key):
    """One step with boolean indexing and torch's own BatchNorm and Adam; return the module and the new mean."""
    source = copy.deepcopy(module)
    module = copy.deepcopy(module).train()
    affine = [module[1].weight, module[1].bias]
    optimiser = torch.optim.Adam(affine, lr=1e-2)
    outputs = module(x)
    p = outputs.detach().softmax(1)
    diverse = 1 - F.cosine_similarity(mean[None], p, dim=1)
    diverse = (diverse - diverse.min()) / (diverse.max() - diverse.min())
    certain = (p * p.log()).sum(1)
    certain = (certain - certain.min()) / (certain.max() - certain.min())
    keep = ~(diverse < diverse.mean())
    assert 1 < keep.sum() < len(x)
    weight = torch.exp(3 * diverse * certain)[keep]
    clamped = outputs.softmax(1).clamp(max=0.99)
    ratio = -(clamped * torch.log(clamped / (1 - clamped) + 1e-5)).sum(1)[keep]
    again, outputs = module(augment(x[keep], key, "roid")), outputs[keep]
    both = (again.softmax(1) * outputs.log_softmax(1)).sum(1) + (outputs.softmax(1) * again.log_softmax(1)).sum(1)
    (((ratio - 0.5 * both) * weight).sum() / len(x)).backward()
    optimiser.step()
    with torch.no_grad():
        for old, new in zip((source[1].weight, source[1].bias), affine, strict=True):
            new.copy_(0.99 * new + 0.01 * old)
    return module, 0.9 * mean + 0.1 * p.mean(0)


def test_a_step_is_the_published_one(tiny_module, tiny_network):
    x, adapter, key = images(9, 3, 8, 8), ROID(lr=1e-2), keys(3, 1)[0]
    start = adapter.init(tiny_network)
    mean = torch.tensor([0.5, 0.3, 0.2])
    with torch.no_grad():
        client = adapter.adapt(tiny_network, Client(start.own, {**start.private, "mean": mean, "key": key}), x)
        logits = adapter.predict(tiny_network, client, x)
    module, mean = published_step(tiny_module, x, mean, key)
    assert client.own.keys() == {"1.weight", "1.bias"}
    torch.testing.assert_close(client.own["1.weight"], module[1].weight.detach())
    torch.testing.assert_close(client.own["1.bias"], module[1].bias.detach())
    torch.testing.assert_close(client.private["mean"], mean)
    assert client.private["key"] != key
    torch.testing.assert_close(logits, corrected(module(x).detach()))


def test_the_mean_prediction_starts_uniform(tiny_network):
    torch.testing.assert_close(ROID().init(tiny_network).private["mean"], torch.full((3,), 1 / 3))


def test_weights_stay_near_the_source(tiny_network):
    x, adapter = images(6, 3, 8, 8), ROID(momentum=0.0)
    client = adapter.adapt(tiny_network, adapter.init(tiny_network), x)
    for name, tensor in client.own.items():
        torch.testing.assert_close(tensor, tiny_network.state[name])


def test_single_images_need_layers_that_do_not_live_on_the_batch(tiny_network):
    adapter = ROID(lr=0.1)
    with pytest.raises(UserError, match="batch=2 or more"):
        adapter.check(tiny_network, 1)
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network = Network(nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), pool, nn.LayerNorm(4), nn.Linear(4, 3)))
    adapter.check(network, 1)
    start = adapter.init(network)
    client = adapter.adapt(network, start, images(1, 3, 8, 8))
    assert start.own.keys() == {"1.weight", "1.bias", "3.weight", "3.bias"}
    for name, tensor in client.own.items():
        assert tensor.isfinite().all()
        assert not torch.equal(tensor, start.own[name])
    assert adapter.predict(network, client, images(1, 3, 8, 8)).isfinite().all()


def test_refuses_models_without_normalisation():
    with pytest.raises(UserError, match="normalisation"):
        ROID().check(Network(nn.Linear(3, 2)), 4)


@pytest.mark.parametrize("parameters", [{"lr": -1.0}, {"temperature": 0.0}, {"momentum": 1.5}, {"momentum_mean": -0.1}])
def test_refuses_impossible_parameters(parameters):
    with pytest.raises(UserError, match=f"roid.{next(iter(parameters))}="):
        ROID(**parameters)


def test_confident_batches_give_finite_gradients(tiny_network):
    own = {"5.weight": 1e4 * tiny_network.state["5.weight"]}
    p = tiny_network(own, images(4, 3, 8, 8), refreshed()).logits
    slope = torch.func.grad(lambda z: soft_likelihood_ratio(z).sum())(p)
    assert slope.isfinite().all()


def test_before_the_update_the_prior_corrects_the_logits_it_is_about_to_learn_from(tiny_network):
    adapter, x = ROID(lr=0.1), images(6, 3, 8, 8)
    client = adapter.adapt(tiny_network, adapter.init(tiny_network), x)
    expected = corrected(tiny_network(client.own, x, refreshed()).logits)
    torch.testing.assert_close(adapter.predict_before(tiny_network, client, x), expected)
