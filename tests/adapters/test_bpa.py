"""BPA's prior by hand, its steps against the objective's own gradient, and what it does with a download."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedctta.adapters.bpa import BPA, pull_to_prior, tightness
from fedctta.adapters.tent import Tent
from fedctta.core.clients import Client
from fedctta.core.network import Network
from fedctta.core.norms import refreshed
from fedctta.errors import UserError

CERTAIN, EVEN, HALF = [0.0, -99.0, -99.0, -99.0], [0.0] * 4, [0.0, 0.0, -99.0, -99.0]
LOSSES = {
    "entropy": lambda p: -(p * p.log()).sum(1).mean(),
    "infomax": lambda p: -(p * p.log()).sum(1).mean() + (p.mean(0) * (p.mean(0) + 1e-5).log()).sum(),
    "pseudo": lambda p: -p.amax(1).log().mean(),
    "slr": lambda p: -(p * (p / (1 - p) + 1e-5).log()).sum(1).mean(),
}


def batch(size=6, seed=0):
    return torch.rand(size, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def flat():
    """A model without normalisation layers: logits are linear in what trains=all trains."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Network(nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(12, 3)))


def holding(adapter, network, prior, own):
    """A client that received `prior` and has adapted to `own`."""
    client = adapter.init(network)
    client = client._replace(private={**client.private, **{f"adapted.{n}": t for n, t in own.items()}})
    return adapter.receive(network, client._replace(own=prior), batch())


def moved(tensors, by=0.1, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return {n: t + by * torch.randn(t.shape, generator=generator) for n, t in tensors.items()}


def map_objective(network, x, prior, lam, loss="entropy"):
    def objective(weights):
        p = network(weights, x).logits.softmax(1)
        return LOSSES[loss](p) + lam / 2 * sum((weights[n] - prior[n]).square().sum() for n in weights)

    return objective


@pytest.mark.parametrize(
    ("logits", "entropy"),
    [([EVEN, EVEN], math.log(4)), ([CERTAIN, EVEN], math.log(4) / 2), ([HALF, HALF], math.log(2)), ([CERTAIN], 0.0)],
)
def test_the_precision_by_hand(logits, entropy):
    logits = torch.tensor(logits)
    assert tightness(logits, 0.5, "high").item() == pytest.approx(4 * entropy, abs=1e-5)
    assert tightness(logits, 0.5, "low").item() == pytest.approx(4 * (math.log(4) - entropy), abs=1e-5)
    assert tightness(logits, 0.5, "low") >= 0


def test_the_pull_by_hand():
    weights, prior = {"a": torch.tensor([4.0, 0.0])}, {"a": torch.tensor([1.0, 2.0])}
    assert pull_to_prior(weights, prior, torch.tensor(0.0))["a"].tolist() == [4, 0]
    assert pull_to_prior(weights, prior, torch.tensor(1.0))["a"].tolist() == [2.5, 1]
    assert pull_to_prior(weights, prior, torch.tensor(2.0))["a"].tolist() == pytest.approx([2, 4 / 3])
    assert pull_to_prior(weights, prior, torch.tensor(1e30))["a"].tolist() == [1, 2]


@pytest.mark.parametrize("precision", ["high", "low"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_small_step_goes_down_the_gradient_of_the_objective(flat, loss, precision):
    x, prior = batch(), moved(flat.parameters, seed=1)
    own = moved(prior, 0.3)
    adapter = BPA(lr=1e-4, sigma=0.7, loss=loss, precision=precision, trains="all", start="own")
    after = adapter.adapt(flat, holding(adapter, flat, prior, own), x).own
    doubt = LOSSES["entropy"](flat(prior, x).logits.softmax(1))
    lam = (doubt if precision == "high" else math.log(3) - doubt) / 0.7**2
    gradient = torch.func.grad(map_objective(flat, x, prior, lam, loss))(own)
    for name, weight in own.items():
        torch.testing.assert_close((weight - after[name]) / 1e-4, gradient[name], rtol=5e-3, atol=5e-3)


def test_many_steps_find_the_mode(flat):
    """At the end the gradient of the whole objective is zero, though that of the entropy alone is not."""
    x, prior = batch(), moved(flat.parameters, seed=1)
    adapter = BPA(lr=0.2, sigma=0.7, steps=300, trains="all")
    found = adapter.adapt(flat, holding(adapter, flat, prior, prior), x).own
    lam = tightness(flat(prior, x).logits, 0.7, "high")
    at_mode = torch.func.grad(map_objective(flat, x, prior, lam))(found)
    alone = torch.func.grad(map_objective(flat, x, prior, 0.0))(found)
    assert max(g.abs().max() for g in at_mode.values()) < 1e-5
    assert max(g.abs().max() for g in alone.values()) > 1e-2


def test_one_step_from_the_prior_is_a_shorter_one(flat):
    """theta_G - lr g / (1 + lr lambda): the prior counts though its gradient is zero there."""
    x, prior = batch(), flat.parameters
    after = BPA(lr=0.1, sigma=0.2, trains="all").adapt(flat, BPA(trains="all").init(flat), x).own
    pull = 0.1 * tightness(flat(prior, x).logits, 0.2, "high")
    gradient = torch.func.grad(map_objective(flat, x, prior, 0.0))(prior)
    for name, weight in prior.items():
        torch.testing.assert_close(after[name], weight - 0.1 * gradient[name] / (1 + pull))


@pytest.mark.parametrize("trains", ["norm", "all"])
def test_a_tight_prior_is_kept_and_a_loose_one_is_not_felt(tiny_network, trains):
    x = batch()
    tight = BPA(sigma=1e-9, lr=0.1, steps=3, trains=trains)
    client = tight.init(tiny_network)
    for name, weight in tight.adapt(tiny_network, client, x).own.items():
        torch.testing.assert_close(weight, client.own[name])
    loose = BPA(sigma=1e9, trains="norm")
    free = Tent().adapt(tiny_network, Tent().init(tiny_network), x).own
    for name, weight in loose.adapt(tiny_network, loose.init(tiny_network), x).own.items():
        torch.testing.assert_close(weight, free[name])


def test_at_the_defaults_both_terms_matter(tiny_network):
    x, source = batch(), tiny_network.state
    own = BPA().adapt(tiny_network, BPA().init(tiny_network), x).own
    free = Tent().adapt(tiny_network, Tent().init(tiny_network), x).own
    share = ((own["1.bias"] - source["1.bias"]) / (free["1.bias"] - source["1.bias"])).mean()
    assert 0.2 < share < 0.8


def test_what_is_received_is_the_next_prior_and_the_adapted_model_predicts(tiny_network):
    x, adapter = batch(), BPA()
    client = adapter.adapt(tiny_network, adapter.init(tiny_network), x)
    sent = moved(client.own)
    after = adapter.receive(tiny_network, client._replace(own=sent), x)
    for name, tensor in sent.items():
        assert torch.equal(after.private[f"prior.{name}"], tensor)
        assert torch.equal(after.own[name], client.own[name])
    told = BPA(predict_with="received").receive(tiny_network, client._replace(own=sent), x)
    assert all(torch.equal(told.own[name], tensor) for name, tensor in sent.items())


@pytest.mark.parametrize("predict_with", ["adapted", "received"])
def test_where_a_batch_starts(flat, predict_with):
    """With lr=0 nothing moves, so the client ends where it began."""
    prior, own = moved(flat.parameters, seed=1), moved(flat.parameters, seed=2)
    for start, expected in (("received", prior), ("own", own)):
        adapter = BPA(lr=0.0, trains="all", start=start, predict_with=predict_with)
        after = adapter.adapt(flat, holding(adapter, flat, prior, own), batch())
        assert all(torch.equal(after.own[name], tensor) for name, tensor in expected.items())


def test_without_a_download_the_prior_stays(tiny_network):
    adapter, x = BPA(lr=0.1), batch()
    once = adapter.adapt(tiny_network, adapter.init(tiny_network), x)
    twice = adapter.adapt(tiny_network, once, x)
    assert all(torch.equal(twice.private[f"prior.{name}"], tiny_network.state[name]) for name in once.own)


def test_what_is_trained_travels(tiny_network):
    assert list(BPA().init(tiny_network).own) == ["1.weight", "1.bias"]
    assert BPA(trains="all").init(tiny_network).own.keys() == tiny_network.parameters.keys()
    lean = BPA(predict_with="received", trains="all").init(tiny_network).private
    assert {name.partition(".")[0] for name in lean} == {"prior"}


@pytest.mark.parametrize("norm", [lambda: nn.GroupNorm(2, 4), lambda: nn.LayerNorm([4, 8, 8])])
def test_other_normalisation_layers_work_and_take_single_images(norm):
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), norm(), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 3))
    network, adapter = Network(model), BPA()
    adapter.check(network, batch=1)
    client = adapter.init(network)
    changed = adapter.adapt(network, client, batch(1))
    assert client.own.keys() == {"1.weight", "1.bias"}
    assert not torch.equal(changed.own["1.weight"], client.own["1.weight"])
    assert isinstance(changed, Client)


def test_impossible_parameters_and_models_are_refused(tiny_network, flat):
    for parameters in ({"lr": -1.0}, {"steps": 0}, {"sigma": 0.0}):
        with pytest.raises(UserError, match="must"):
            BPA(**parameters)
    with pytest.raises(UserError, match="batch=1 gives adapter 'bpa' no batch statistics"):
        BPA().check(tiny_network, 1)
    with pytest.raises(UserError, match="'bpa' trains scales of normalisation layers"):
        BPA().check(flat, 8)
    BPA(trains="all").check(flat, 1)


@pytest.mark.parametrize("start", ["received", "own"])
def test_before_the_update_the_model_predicts_from_which_it_starts(tiny_network, start):
    adapter = BPA(start=start)
    prior, own = moved(adapter.init(tiny_network).own), moved(adapter.init(tiny_network).own, seed=6)
    client = holding(adapter, tiny_network, prior, own)
    expected = tiny_network(prior if start == "received" else own, batch(), refreshed()).logits
    torch.testing.assert_close(adapter.predict_before(tiny_network, client, batch()), expected)
