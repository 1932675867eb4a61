"""T3A against lists."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from fedctta.adapters.t3a import T3A


def entropy(logits):
    p = logits.softmax(-1)
    return -(p * p.log()).sum(-1)


def plain(network, xs, most):
    weight, bias = network.state["5.weight"], network.state["5.bias"]
    supports = [[(float(entropy(weight[k] @ weight.T + bias)), weight[k])] for k in range(len(weight))]
    for x in xs:
        output = network({}, x)
        for z, logits in zip(output.features, output.logits, strict=True):
            supports[int(logits.argmax())].append((float(entropy(logits)), z))
        supports = [sorted(each, key=lambda pair: pair[0])[:most] for each in supports]
    centroids = [F.normalize(torch.stack([F.normalize(z, dim=0) for _, z in each]).sum(0), dim=0) for each in supports]
    return torch.stack(centroids)


def test_centroids_equal_those_of_lists(tiny_network):
    xs = torch.rand(4, 5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    adapter = T3A(supports=3)
    client = adapter.init(tiny_network)
    for x in xs:
        client = adapter.adapt(tiny_network, client, x)
    torch.testing.assert_close(client.own["5.weight"], plain(tiny_network, xs, 3), rtol=1e-4, atol=1e-5)
    logits = adapter.predict(tiny_network, client, xs[0])
    features = tiny_network({}, xs[0]).features
    torch.testing.assert_close(logits, features @ client.own["5.weight"].T)


def test_it_starts_with_the_sources_classifier(tiny_network):
    client = T3A().init(tiny_network)
    torch.testing.assert_close(client.own["5.weight"], F.normalize(tiny_network.state["5.weight"], dim=1))
    assert torch.equal(client.own["5.bias"], torch.zeros(3))


def test_a_single_image_will_do(tiny_network):
    adapter = T3A(supports=2)
    adapter.check(tiny_network, 1)
    client = adapter.adapt(tiny_network, adapter.init(tiny_network), torch.rand(1, 3, 8, 8))
    assert client.own["5.weight"].isfinite().all()
