"""FedTHE+ against loops over images, and its loss by hand."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedctta.adapters.common.augmentation import views
from fedctta.adapters.fedthe import FedTHE, classifier, mixed, mixing_loss, mixing_weights, moving_average
from fedctta.core.clients import Client
from fedctta.core.network import Network
from fedctta.core.randomness import advance, fork, keys
from fedctta.errors import UserError

CLIENTS = 4


def images(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def heads(tiny_network, tmp_path):
    """Trained heads of four source clients, all different."""
    generator = torch.Generator().manual_seed(2)
    shapes = {"weight": (3, 4), "bias": (3,), "feature": (4,)}
    tensors = {f"global.{name}": torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    tensors |= {f"personal.{n}": torch.randn(CLIENTS, *shape, generator=generator) for n, shape in shapes.items()}
    save_file(tensors, tmp_path / "heads.safetensors")
    return str(tmp_path / "heads.safetensors"), tensors


def test_the_average_moves_image_by_image():
    before, z = torch.tensor([1.0, -1.0]), images(5, 2)
    found, m = moving_average(before, z, 0.3), before
    for row, feature in zip(found, z, strict=True):
        m = 0.3 * feature + 0.7 * m
        torch.testing.assert_close(row, m)


def test_the_average_starts_at_the_first_image_and_goes_on_over_batches(tiny_network):
    x, adapter = images(7, 3, 8, 8), FedTHE(plus=0)
    client = adapter.init(tiny_network)
    z = tiny_network({}, x).features
    m = z[0]
    for part in (slice(0, 4), slice(4, 7)):
        client = adapter.adapt(tiny_network, client, x[part])
        torch.testing.assert_close(client.private["before"], m)
        for feature in z[part]:
            m = 0.1 * feature + 0.9 * m
        torch.testing.assert_close(client.private["after"], m)


def test_the_loss_by_hand():
    g, q = torch.tensor([[math.log(3.0), 0.0]]), torch.tensor([[0.0, math.log(3.0)]])  # (3/4, 1/4) and (1/4, 3/4)
    agree = (3 / 16 + 3 / 16) / (9 / 16 + 1 / 16)  # 0.6
    found = mixing_loss(torch.zeros(1), g, q, torch.tensor([2.0]), torch.tensor([4.0]))  # e = 1/2: evenly mixed
    assert found.item() == pytest.approx(agree * math.log(2) + (1 - agree) * 3.0, abs=1e-6)
    all_global = mixing_loss(torch.full((1,), 50.0), g, q, torch.tensor([2.0]), torch.tensor([4.0]))
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert all_global.item() == pytest.approx(agree * entropy + (1 - agree) * 2.0, abs=1e-5)


def test_weights_lower_their_loss_and_lean_to_the_nearer_head():
    generator = torch.Generator().manual_seed(0)
    g, q = (torch.randn(6, 3, generator=generator) for _ in range(2))
    far_g, far_q = (5 * torch.rand(6, generator=generator) for _ in range(2))

    def loss(e):
        return mixing_loss(torch.logit(e), g, q, far_g, far_q)

    losses = [loss(mixing_weights(g, q, far_g, far_q, steps, 0.1)) for steps in (0, 1, 20)]
    assert (losses[0] > losses[1]).all()
    assert (losses[1] > losses[2]).all()
    e = mixing_weights(g, g + torch.tensor([0.0, 0.0, 30.0]), torch.zeros(6), torch.ones(6), 20, 0.1)
    assert (e > 0.5).all()


def test_weights_are_the_softmax_of_two_numbers_trained_by_adam():
    g, q = images(4, 3) * 3, images(4, 3).flip(1) * 2
    far = torch.tensor([1.0, 2.0, 0.5, 3.0]), torch.tensor([2.0, 1.0, 0.7, 0.1])
    numbers = nn.Parameter(torch.ones(4, 2))
    optimiser = torch.optim.Adam([numbers], lr=0.1)
    for _ in range(20):
        e = numbers.softmax(-1)[:, 0]
        optimiser.zero_grad()
        mixing_loss(torch.logit(e), g, q, *far).sum().backward()
        optimiser.step()
    torch.testing.assert_close(
        mixing_weights(g, q, *far, 20, 0.1), numbers.softmax(-1)[:, 0].detach(), atol=1e-4, rtol=0
    )


def test_a_prediction_is_its_heads_mixed(tiny_network, heads):
    path, tensors = heads
    x, adapter = images(5, 3, 8, 8), FedTHE(heads=path, plus=0)
    client = adapter.adapt(tiny_network, adapter.init(tiny_network), x)
    z = tiny_network({}, x).features
    g = z @ tensors["global.weight"].mT + tensors["global.bias"]
    q = z @ client.private["personal.weight"].mT + client.private["personal.bias"]
    smooth = 0.1 * z + 0.9 * moving_average(z[0], z, 0.1)
    far = [(smooth - client.private[f"{head}.feature"]).square().sum(-1).sqrt() for head in ("global", "personal")]
    e = mixing_weights(g, q, *far, 20, 0.1)
    torch.testing.assert_close(adapter.predict(tiny_network, client, x), mixed(e[:, None], g, q), atol=1e-5, rtol=1e-4)


def test_a_client_keeps_the_personal_head_its_key_draws(tiny_network, heads):
    path, tensors = heads
    x, adapter, drawn = images(2, 3, 8, 8), FedTHE(heads=path, plus=0), set()
    for key in keys(0, 12):
        start = adapter.init(tiny_network)
        client = adapter.adapt(tiny_network, Client({}, {**start.private, "key": key}), x)
        found = [
            k for k in range(CLIENTS) if torch.equal(client.private["personal.weight"], tensors["personal.weight"][k])
        ]
        assert found == [int(fork(key, 1)) % CLIENTS]
        assert torch.equal(client.private["personal.feature"], tensors["personal.feature"][found[0]])
        later = adapter.adapt(tiny_network, client, x)
        assert torch.equal(later.private["personal.weight"], client.private["personal.weight"])
        drawn.update(found)
    assert drawn == set(range(CLIENTS))


def test_every_image_takes_its_own_steps_on_both_heads_and_the_extractor(tiny_module, tiny_network, heads):
    path, tensors = heads
    x = images(3, 3, 8, 8)
    adapter = FedTHE(heads=path, plus=2, views=3, plus_lr=0.1)
    client = adapter.adapt(tiny_network, adapter.init(tiny_network), x)
    with torch.no_grad():
        found = adapter.predict(tiny_network, client, x)
    plain = FedTHE(heads=path, plus=0)
    g = tiny_network({f"5.{n}": tensors[f"global.{n}"] for n in ("weight", "bias")}, x).logits
    q = torch.nn.functional.linear(
        tiny_network({}, x).features, client.private["personal.weight"], client.private["personal.bias"]
    )
    e = ((plain.predict(tiny_network, client, x) - q) / (g - q)).mean(-1)
    for number, image in enumerate(x):
        module, head = copy.deepcopy(tiny_module), nn.Linear(4, 3)
        with torch.no_grad():
            for name in ("weight", "bias"):
                getattr(module[5], name).copy_(tensors[f"global.{name}"])
                getattr(head, name).copy_(client.private[f"personal.{name}"])

        def logits(seen, module=module, head=head, number=number):
            return mixed(e[number], module(seen), head(module[:5](seen)))

        optimiser = torch.optim.SGD([*module.parameters(), *head.parameters()], lr=0.1)
        key = fork(client.private["key"] + number, 2)
        for turn in (1, 2):
            mean = logits(views(image[None], fork(key, turn), "cotta", 3)[:, 0]).softmax(-1).mean(0)
            optimiser.zero_grad()
            (-(mean * mean.log()).sum()).backward()
            optimiser.step()
        torch.testing.assert_close(found[number], logits(image[None])[0].detach(), atol=1e-4, rtol=1e-3)
    assert (found - plain.predict(tiny_network, client, x)).abs().max() > 1e-2


def test_without_trained_heads_the_personal_one_is_tuned_by_entropy(tiny_module, tiny_network):
    x, adapter = images(6, 3, 8, 8), FedTHE(tune=3, tune_lr=0.01, plus=0)
    client = adapter.adapt(tiny_network, adapter.init(tiny_network), x)
    z, head = tiny_module[:5](x).detach(), copy.deepcopy(tiny_module[5])
    optimiser = torch.optim.Adam(head.parameters(), lr=0.01)
    for _ in range(3):
        p = head(z).softmax(-1)
        optimiser.zero_grad()
        (-(p * p.log()).sum(-1).mean()).backward()
        optimiser.step()
    torch.testing.assert_close(client.private["personal.weight"], head.weight.detach(), atol=1e-5, rtol=1e-4)
    assert torch.equal(client.private["global.weight"], tiny_module[5].weight)
    torch.testing.assert_close(client.private["personal.feature"], z.mean(0))
    more = images(2, 3, 8, 8) ** 2
    client = adapter.adapt(tiny_network, client, more)
    both = (z.mean(0) + tiny_module[:5](more).detach().mean(0)) / 2
    torch.testing.assert_close(client.private["personal.feature"], both)


def test_the_source_is_studied_for_its_mean_feature(tiny_module, tiny_network, heads):
    x = images(450, 3, 8, 8)
    learnt = FedTHE(images=450).study(tiny_network, x, 4)
    torch.testing.assert_close(learnt["global.feature"], tiny_module[:5](x).detach().mean(0))
    assert learnt.keys() <= FedTHE().init(tiny_network).private.keys()
    assert FedTHE(images=450).source_images == 450
    assert FedTHE(heads=heads[0]).source_images == 0


def test_nothing_travels_and_chance_moves_on(tiny_network):
    adapter, x = FedTHE(plus=0), images(2, 3, 8, 8)
    start = adapter.init(tiny_network)
    after = adapter.adapt(tiny_network, start, x)
    assert start.own == after.own == {}
    assert torch.equal(after.private["key"], advance(start.private["key"]))


def test_a_head_without_bias_works():
    network = Network(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3, bias=False))
    )
    assert classifier(network).keys() == {"weight"}
    adapter, x = FedTHE(plus=1, views=2), images(2, 3, 8, 8)
    client = adapter.adapt(network, adapter.init(network), x)
    assert adapter.predict(network, client, x).isfinite().all()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"lr": -1}, "fedthe.lr=-1 must not"),
        ({"plus": -1}, "fedthe.plus=-1 must not"),
        ({"views": 0}, "fedthe.views=0 must be"),
        ({"beta": 2}, "fedthe.beta=2 must lie"),
    ],
)
def test_refuses_impossible_parameters(parameters, message):
    with pytest.raises(UserError, match=message):
        FedTHE(**parameters)


@pytest.mark.parametrize("missing", ["global.bias", "personal.weight", "personal.feature"])
def test_refuses_heads_of_another_model(tiny_network, heads, missing):
    path, tensors = heads
    FedTHE(heads=path).check(tiny_network, 1)
    save_file({name: tensor for name, tensor in tensors.items() if name != missing}, path)
    with pytest.raises(UserError, match="holds no heads for this model"):
        FedTHE(heads=path).check(tiny_network, 1)


def test_before_the_update_the_personal_head_is_not_tuned_yet(tiny_network):
    adapter, x = FedTHE(plus=0, tune=5, tune_lr=0.3), images(5, 3, 8, 8)
    client = adapter.adapt(tiny_network, adapter.init(tiny_network), images(4, 3, 8, 8))
    after = adapter.adapt(tiny_network, client, x)
    kept = {n: t for n, t in client.private.items() if n in ("personal.weight", "personal.bias")}
    expected = adapter.predict(tiny_network, Client({}, {**after.private, **kept}), x)
    torch.testing.assert_close(adapter.predict_before(tiny_network, client, x), expected)
    assert (adapter.predict(tiny_network, after, x) - expected).abs().max() > 1e-3
