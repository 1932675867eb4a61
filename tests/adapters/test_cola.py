"""CoLA against a plain version with torch's optimisers, and its equations by hand."""

from __future__ import annotations

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedctta.adapters.cola import CoLA
from fedctta.adapters.common.early_features import distance, early_statistics
from fedctta.adapters.common.inner import METHODS
from fedctta.core.clients import Client, by_loop, by_vmap, stack
from fedctta.core.network import Network
from fedctta.core.norms import Statistics, blend, refreshed
from fedctta.core.randomness import keys, name_of
from fedctta.core.tensors import lay_out, take_apart
from fedctta.errors import UserError

OWN = ("1.bias", "1.weight")  # in the order of a vector


def batches(count=6, size=8, seed=0):
    """Batches of two domains in turn, two batches each: dark and light."""
    x = torch.rand(count, size, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    light = (torch.arange(count) // 2 % 2).view(-1, 1, 1, 1, 1)
    return x * (1 + 2 * light)


def entropy(logits):
    p = logits.softmax(1)
    return -(p * p.log()).sum(1)


def symmetric(a, b):
    """The published distance of two (variance, mean)."""
    gap = (a[1] - b[1]) ** 2
    return ((a[0] + gap) / 2 / b[0] - 0.5 + (b[0] + gap) / 2 / a[0] - 0.5).mean()


def plain(module, xs, lr=0.05, decay=0.0, threshold=0.1, margin=0.01):
    """Lifelong CoLA with Tent as one would write it for one model; returns theta, vectors, alpha, scale, epsilon."""
    model = copy.deepcopy(module).train().requires_grad_(False)
    source = torch.cat([module[1].bias, module[1].weight]).detach()
    vectors, stay, stays = [torch.zeros_like(source)], None, []
    alpha, scale = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.ones(1))
    epsilon = nn.Parameter(torch.zeros_like(source))
    of_epsilon = torch.optim.SGD([epsilon], lr, momentum=0.9, weight_decay=decay)

    def fuse():
        return source + (alpha * scale).softmax(0) @ torch.stack(vectors) + epsilon

    for x in xs:
        features = module[0](x).detach().movedim(1, 0).flatten(1)
        now = (features.var(1), features.mean(1))
        with torch.no_grad():
            if stay is not None and symmetric(stay, now) > threshold:
                theta = fuse()
                size = max(part.abs().mean() for part in epsilon.chunk(2)) / margin
                score = (alpha * scale).max()
                if size > 1:
                    score = torch.maximum(score, torch.log((alpha * scale).exp().sum() * (size - 1)))
                alpha = nn.Parameter(torch.cat([alpha, (score / scale).clip(-10, 10)]))
                vectors.append(theta - source)
                epsilon += theta - fuse()
                stays.append(stay)
                stay = None
        theta = fuse()
        logits = torch.func.functional_call(model, dict(zip(OWN, theta.chunk(2), strict=True)), x)
        entropy(logits).mean().backward()
        if len(vectors) > 1:
            torch.optim.AdamW([{"params": [alpha], "weight_decay": 0.1}, {"params": [scale]}], lr=0.1).step()
        of_epsilon.step()
        for weight in (alpha, scale, epsilon):
            weight.grad = None
        stay = now if stay is None else tuple(0.8 * a + 0.2 * b for a, b in zip(stay, now, strict=True))
    return fuse().detach(), torch.stack(vectors), alpha.detach(), scale.detach(), epsilon.detach(), stays


def stored(client):
    """How many vectors of its own a client holds."""
    return int((client.private["kept.serial"] > 0).sum())


def play(adapter, network, xs, client=None):
    client = adapter.init(network) if client is None else client
    for x in xs:
        client = adapter.adapt(network, client, x)
    return client


@pytest.mark.parametrize("decay", [0.0, 0.4])
def test_a_principal_alone_equals_the_plain_version(tiny_module, decay):
    theta, vectors, alpha, scale, epsilon, stays = plain(tiny_module, batches(), decay=decay)
    client = play(CoLA(lr=0.05, vectors=4, decay=decay), Network(tiny_module), batches())
    private = client.private
    assert len(vectors) == 3, "two shifts and the source"
    torch.testing.assert_close(lay_out(client.own), theta)
    torch.testing.assert_close(private["kept.vectors"][:2], vectors[1:])
    assert private["kept.serial"].tolist() == [5, 9, 0, 0], "stored before batches 2 and 4"
    torch.testing.assert_close(private["alpha"][[0, 5, 6]], alpha)
    torch.testing.assert_close(private["scale"], scale[0])
    torch.testing.assert_close(private["kept.var"][:2], torch.stack([stay[0] for stay in stays]))
    torch.testing.assert_close(private["kept.mean"][:2], torch.stack([stay[1] for stay in stays]))
    torch.testing.assert_close(
        CoLA()._offset(Network(tiny_module), client), vectors.T @ (alpha * scale).softmax(0) + epsilon
    )


def test_storing_moves_nothing(tiny_network):
    adapter = CoLA(lr=0.05, vectors=4)
    before = play(adapter, tiny_network, batches(2))
    after = adapter._store(tiny_network, before, torch.tensor(True))
    assert after["kept.serial"].tolist() == [5, 0, 0, 0]
    torch.testing.assert_close(after["kept.vectors"][0], adapter._offset(tiny_network, before))
    assert all(torch.equal(after[name], before.private[name]) for name in after if name.startswith("shared"))


def test_with_room_for_two_the_one_of_least_alpha_leaves(tiny_network):
    adapter = CoLA(vectors=2)
    client = play(adapter, tiny_network, batches(2))
    private = client.private | {
        "kept.serial": torch.tensor([1, 3]),
        "alpha": torch.tensor([0.0, 0, 0, 2.0, 1.0]),
    }
    full = adapter._store(tiny_network, client._replace(private=private), torch.tensor(True))
    assert full["kept.serial"].tolist() == [1, 5]
    confirmed = private | {"taken": torch.tensor(1)}  # the server has the first one: its place is free
    assert adapter._store(tiny_network, client._replace(private=confirmed), torch.tensor(True))[
        "kept.serial"
    ].tolist() == [5, 3]


def test_no_shift_in_batches_that_are_too_small_or_alike(tiny_network):
    assert stored(play(CoLA(), tiny_network, batches(6))) == 2
    assert stored(play(CoLA(least=9), tiny_network, batches(6))) == 0
    assert stored(play(CoLA(threshold=100.0), tiny_network, batches(6))) == 0
    assert stored(play(CoLA(), tiny_network, batches(6)[[0, 1, 4, 5]])) == 0


def test_a_vector_after_every_so_many_batches(tiny_network):
    client = play(CoLA(every=2), tiny_network, batches(6)[[0, 1, 4, 5, 0]])
    assert client.private["kept.serial"][:3].tolist() == [5, 9, 0]


def sharing(network, adapter, vectors, means, var=1.0):
    """A client that was handed these vectors of domains with these features."""
    client, count = adapter.init(network), len(vectors)
    shared = {
        "shared.vectors": F.pad(torch.tensor(vectors), (0, 0, 0, adapter.vectors - count)),
        "shared.mean": F.pad(torch.tensor(means)[:, None].expand(-1, 4), (0, 0, 0, adapter.vectors - count)),
        "shared.var": torch.full((adapter.vectors, 4), var),
        "shared.name": F.pad(torch.arange(count) + 7, (0, adapter.vectors - count)),
    }
    return client._replace(private=client.private | shared)


def test_a_follower_mixes_by_similarity(tiny_network):
    adapter = CoLA(role="follower", vectors=3)
    client = sharing(tiny_network, adapter, [[1.0] * 8, [3.0] * 8], [0.0, 1.0])
    stay = {"stay.mean": torch.full((4,), 0.25), "stay.var": torch.ones(4), "stay.batches": torch.tensor(1)}
    client = adapter.receive(tiny_network, client._replace(private=client.private | stay), batches(1)[0])
    near, far = 1 / (0.25**2 + 1e-4) / 5, 1 / (0.75**2 + 1e-4) / 5
    share = 1 / (1 + math.exp(far - near))
    source = lay_out({name: tiny_network.state[name] for name in OWN})
    torch.testing.assert_close(lay_out(client.own) - source, torch.full((8,), share + 3 * (1 - share)))


def test_a_follower_averages_features_and_stores_nothing(tiny_network):
    adapter, xs = CoLA(role="follower", vectors=3), batches(4)
    client = play(adapter, tiny_network, xs)
    seen = [early_statistics(tiny_network, x) for x in xs]
    assert distance(seen[1], seen[2]) > adapter.threshold
    stay = seen[0]
    for one in seen[1:]:
        stay = blend(stay, one, 0.2)
    torch.testing.assert_close(client.private["stay.mean"], stay.mean)
    torch.testing.assert_close(client.private["stay.var"], stay.var)
    assert stored(client) == client.private["offered"] == 0
    assert all(torch.equal(client.own[name], tiny_network.state[name]) for name in OWN), "there is nothing to mix"


def test_a_vector_keeps_its_alpha_wherever_it_lies(tiny_network):
    adapter = CoLA(vectors=2, spread=1.0)
    client = adapter.init(tiny_network)
    key = keys(0, 1)[0]
    own = name_of(key, torch.tensor([1, 2]))
    private = client.private | {
        "key": key,
        "alpha": torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5]),  # the source, names 7 and 8, own vectors 1 and 2
        "weighed": torch.tensor([7, 8]),
        "kept.serial": torch.tensor([1, 2]),
    }
    handed = private | {"shared.name": torch.stack([own[0], torch.tensor(7)]), "taken": torch.tensor(1)}
    after = adapter.receive(tiny_network, Client(client.own, handed), batches(1)[0]).private
    torch.testing.assert_close(after["alpha"], torch.tensor([0.1, 0.4, 0.2, 0.4, 0.5]))
    assert adapter._there(after).tolist() == [True, True, True, False, True], "own vector 1 is a shared one now"
    new = private | {"shared.name": torch.tensor([9, 0])}
    after = adapter.receive(tiny_network, Client(client.own, new), batches(1)[0]).private
    assert after["alpha"][1] not in (0.2, 0.3)
    assert after["alpha"][2] == 0
    still = CoLA(vectors=2, spread=0.0).receive(tiny_network, Client(client.own, new), batches(1)[0]).private
    assert still["alpha"][1] == 0


def test_weights_that_were_offered_are_stored_when_taken(tiny_network):
    adapter = CoLA(lr=0.05, vectors=2, margin=1e-4)
    client = play(adapter, tiny_network, batches(2))
    assert client.private["offered"] == 4
    name = name_of(client.private["key"], torch.tensor(4))
    offset = adapter._offset(tiny_network, client)
    handed = client.private | {
        "shared.name": torch.stack([name, torch.tensor(0)]),
        "shared.vectors": torch.stack([offset, torch.zeros_like(offset)]),
        "taken": torch.tensor(4),
    }
    after = adapter.receive(tiny_network, Client(client.own, handed), batches(1)[0])
    assert after.private["stay.batches"] == 0
    assert all(torch.equal(after.own[n], t) for n, t in client.own.items())
    size = max(part.abs().mean() for part in offset.chunk(2))
    weight = after.private["alpha"][:2].softmax(0)[1]
    torch.testing.assert_close(weight, 1 - 1e-4 / size)
    quiet = play(CoLA(offer=False), tiny_network, batches(2))
    assert quiet.private["offered"] == 0


def test_mixed_roles_are_both_roles(tiny_network):
    mixed, xs = CoLA(role="mixed", vectors=2), batches(4)
    clients = stack(mixed.init(tiny_network), 12)
    clients = clients._replace(private=clients.private | {"key": keys(0, 12)})
    follows = by_loop(mixed._follows)(clients)
    assert 2 < follows.sum() < 10
    for x in xs:
        clients = by_vmap(partial(mixed.adapt, tiny_network))(clients, x.expand(12, *x.shape))
    for role, who in (("principal", ~follows), ("follower", follows)):
        alone = play(CoLA(role=role, vectors=2), tiny_network, xs)
        for name in OWN:
            torch.testing.assert_close(clients.own[name][who], alone.own[name].expand(int(who.sum()), -1))
        assert ((clients.private["kept.serial"] > 0).sum(1)[who] == stored(alone)).all()


@pytest.mark.parametrize("base", ["tent", "eta", "sar"])
def test_without_vectors_it_is_the_base_method_with_momentum(tiny_module, base):
    with torch.no_grad():
        tiny_module[5].weight *= 8  # sure enough for those who filter
    network, adapter, x = Network(tiny_module), CoLA(base=base, lr=0.1), batches(1)[0]
    method = METHODS[base]
    slope = method.slope(network, method.init(network), x, refreshed())
    assert slope.some
    client = play(adapter, network, [x])
    for name, gradient in slope.gradient.items():
        torch.testing.assert_close(client.own[name], network.state[name] - 0.1 * gradient)


def test_a_collapse_brings_the_source_back_and_keeps_the_vectors(tiny_module):
    with torch.no_grad():
        tiny_module[5].weight *= 100  # every prediction is certain
    network = Network(tiny_module)
    client = play(CoLA(base="sar", vectors=2), network, batches(3))
    assert stored(client) == 1
    assert all(torch.equal(client.own[name], network.state[name]) for name in OWN)
    assert client.private["velocity"].abs().max() == 0
    assert client.private["base.met"] == 0


@pytest.mark.parametrize(("statistics", "momentum"), [("source", 0.0), ("moving", 0.3)])
def test_other_statistics(tiny_network, statistics, momentum):
    adapter, (x,) = CoLA(lr=0.0, statistics=statistics, momentum=momentum), batches(1)
    client = play(adapter, tiny_network, [x])
    expected = tiny_network(tiny_network.state, x, refreshed(momentum))
    torch.testing.assert_close(adapter.predict(tiny_network, client, x), expected.logits)
    torch.testing.assert_close(adapter.predict_before(tiny_network, adapter.init(tiny_network), x), expected.logits)
    followed = play(CoLA(role="follower", statistics=statistics, momentum=momentum), tiny_network, [x])
    torch.testing.assert_close(adapter.predict(tiny_network, followed, x), expected.logits)


class Tokens(nn.Module):
    """Patches as tokens, LayerNorm, Linear: no BatchNorm."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Conv2d(3, 6, 4, 4), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.norm(self.embed(x).flatten(2).mT).mean(1))


def test_a_model_with_layer_norm_learns_and_follows():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Network(Tokens())
    learnt = play(CoLA(lr=0.05, threshold=1.0), network, batches(6)).private
    assert learnt["kept.serial"][:3].tolist() == [5, 9, 0]
    follower = CoLA(role="follower")
    follower.check(network, 2)
    client = follower.init(network)
    handed = {f"shared.{name}": learnt[f"kept.{name}"] for name in ("vectors", "mean", "var")}
    client = client._replace(private=client.private | handed | {"shared.name": learnt["kept.serial"]})
    dark, light = (lay_out(follower.adapt(network, client, x).own) for x in batches(4)[[0, 2]])
    source = lay_out({name: network.state[name] for name in network.affine})
    for follows, vector in ((dark, 0), (light, 1)):
        torch.testing.assert_close(follows - source, learnt["kept.vectors"][vector], atol=2e-3, rtol=0)
    assert (dark - light).abs().max() > 4e-3
    with pytest.raises(UserError, match=r"cola.statistics=moving has no effect"):
        CoLA(statistics="moving").check(network, 4)


def test_the_base_method_studies_the_source(tiny_network):
    adapter = CoLA(base="eata")
    assert adapter.source_images == 2000
    assert CoLA(base="eta").source_images == CoLA().source_images == 0
    learnt = adapter.study(tiny_network, torch.rand(8, 3, 8, 8), 4)
    assert learnt.keys() == {f"base.fisher.{name}" for name in OWN}
    far = take_apart(torch.full((8,), 2.0), {name: tiny_network.state[name] for name in OWN})
    client = adapter.init(tiny_network)
    client = Client(
        {n: t + far[n] for n, t in client.own.items()}, client.private | {n: t + 1e3 for n, t in learnt.items()}
    )
    with torch.no_grad():
        tiny_network.module[5].weight.mul_(1e3)  # sure enough to pass
    after = adapter.adapt(tiny_network, client, batches(1)[0])
    assert all((after.own[n] < client.own[n]).all() for n in OWN), "pulled towards the source"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"lr": -1.0}, "cola.lr=-1.0 must not be negative"),
        ({"vectors": 0}, "cola.vectors=0 must be at least 1"),
        ({"temperature": 0.0}, "cola.temperature=0.0 must be above 0"),
        ({"keep": 1.5}, "cola.keep=1.5 must lie between 0 and 1"),
    ],
)
def test_what_cannot_be_meant_is_told(parameters, message):
    with pytest.raises(UserError, match=message):
        CoLA(**parameters)


def test_batches_that_are_too_small_are_refused(tiny_network):
    with pytest.raises(UserError, match=r"cola.least=64 is above batch=10"):
        CoLA(least=64).check(tiny_network, 10)
    with pytest.raises(UserError, match="batch=1 gives"):
        CoLA(least=1).check(tiny_network, 1)
    CoLA(least=1, statistics="source").check(tiny_network, 1)


def test_statistics_by_hand_are_those_of_the_module(tiny_network):
    """The stay after one batch is the batch."""
    x = batches(1)[0]
    client = play(CoLA(), tiny_network, [x])
    seen = early_statistics(tiny_network, x)
    torch.testing.assert_close(Statistics(client.private["stay.mean"], client.private["stay.var"]), seen)
