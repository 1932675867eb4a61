"""MEMO against a loop over images, each with a model of its own."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from fedctta.adapters import memo
from fedctta.adapters.memo import IMAGES_AT_ONCE, MEMO, draw_views, marginal_entropy
from fedctta.core.clients import Client
from fedctta.core.norms import refreshed
from fedctta.core.randomness import fork, keys
from fedctta.errors import UserError
from fedctta.models.augmix import OPERATIONS


def images(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


def test_the_entropy_of_the_mean_by_hand():
    logits = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]])  # (3/4, 1/4) and (1/2, 1/2): mean (5/8, 3/8)
    expected = -5 / 8 * math.log(5 / 8) - 3 / 8 * math.log(3 / 8)
    assert marginal_entropy(logits).item() == pytest.approx(expected, abs=1e-6)
    apart = torch.tensor([[50.0, 0.0], [0.0, 50.0]])  # each certain, but of different things
    assert marginal_entropy(apart).item() == pytest.approx(math.log(2), abs=1e-6)


def test_every_image_is_predicted_by_a_model_one_step_from_the_source(tiny_module, tiny_network):
    x, key = images(IMAGES_AT_ONCE + 3, 3, 8, 8), keys(0, 1)[0]
    adapter = MEMO(lr=0.1, views=4, alpha=0.0)
    with torch.no_grad():
        found = adapter.predict(tiny_network, Client({}, {"key": key}), x)
    for number, image in enumerate(x):
        module = copy.deepcopy(tiny_module)
        seen = draw_views(image, fork(key + number, 1), 4)
        mean = module(seen).softmax(-1).mean(0)
        (-(mean * mean.log()).sum()).backward()
        torch.optim.SGD(module.parameters(), lr=0.1).step()
        torch.testing.assert_close(found[number], module(image[None])[0].detach(), atol=1e-5, rtol=1e-4)
        assert (found[number] - tiny_module(image[None])[0]).abs().max() > 1e-3


def test_mixed_statistics_are_constants_of_the_step(tiny_module, tiny_network):
    """The published way: BatchNorm in evaluation mode with statistics mixed beforehand, anew for every pass."""
    image, key, alpha = images(3, 8, 8), keys(0, 1)[0], 0.6
    with torch.no_grad():
        found = MEMO(lr=0.5, views=4, alpha=alpha).predict(tiny_network, Client({}, {"key": key}), image[None])[0]
    module = copy.deepcopy(tiny_module)
    mean, var = module[1].running_mean.clone(), module[1].running_var.clone()

    def mixed(x):
        with torch.no_grad():
            z = module[0](x)
            module[1].running_mean.copy_((1 - alpha) * mean + alpha * z.mean((0, 2, 3)))
            module[1].running_var.copy_((1 - alpha) * var + alpha * z.var((0, 2, 3), correction=0))
        return module(x)

    p = mixed(draw_views(image, fork(key, 1), 4)).softmax(-1).mean(0)
    (-(p * p.log()).sum()).backward()
    torch.optim.SGD(module.parameters(), lr=0.5).step()
    torch.testing.assert_close(found, mixed(image[None])[0].detach(), atol=1e-5, rtol=1e-4)


def test_views_are_cut_out_of_the_image_over_black_and_mirrored_or_not(monkeypatch):
    monkeypatch.setattr(memo, "mixture", lambda moved, plan: moved / 255)
    image = images(3, 16, 24).mul(255).round() / 255
    padded = torch.nn.functional.pad(image, (3, 3, 2, 2))
    cuts = [padded[:, y : y + 16, x : x + 24] for y in range(5) for x in range(7)]
    possible = torch.stack([*cuts, *(cut.flip(-1) for cut in cuts)])
    views = draw_views(image, keys(0, 1)[0], 200)
    same = (views[:, None] - possible).abs().amax((2, 3, 4)) < 1e-6
    assert (same.sum(1) == 1).all()
    assert same.any(0).sum() > 55  # of 70
    assert 70 < same[:, len(cuts) :].sum() < 130


def test_views_are_mixed_by_augmix_of_severity_one(monkeypatch):
    plans = []
    monkeypatch.setattr(memo, "mixture", lambda moved, plan: plans.append(plan))
    draw_views(images(3, 32, 32), keys(0, 1)[0], 500)
    assert plans[0].operation.shape == (500, 3, 3)
    solarized = plans[0].threshold[plans[0].operation == OPERATIONS.index("solarize")]
    assert (solarized.min(), solarized.max()) == (256 - 25, 256 - 2)
    assert plans[0].share.mean().item() == pytest.approx(0.5, abs=0.05)
    assert MEMO().views == 32


def test_statistics_are_mixed_for_one_image_at_a_time(tiny_network):
    x, adapter = images(3, 3, 8, 8), MEMO(lr=0.0, views=2, alpha=0.3)
    found = adapter.predict(tiny_network, adapter.init(tiny_network), x)
    for logits, image in zip(found, x, strict=True):
        torch.testing.assert_close(logits, tiny_network({}, image[None], refreshed(0.3)).logits[0])


def test_an_image_does_not_depend_on_its_batch(tiny_network):
    x, adapter = images(5, 3, 8, 8), MEMO(lr=0.1, views=3)
    client = adapter.init(tiny_network)
    adapter.check(tiny_network, 1)
    torch.testing.assert_close(
        adapter.predict(tiny_network, client, x[:1]), adapter.predict(tiny_network, client, x)[:1]
    )


def test_only_chance_moves_on(tiny_network):
    x, adapter = images(2, 3, 8, 8), MEMO(lr=0.1, views=3)
    start = adapter.init(tiny_network)
    after = adapter.adapt(tiny_network, start, x)
    assert start.own == after.own == {}
    assert start.private.keys() == after.private.keys() == {"key"}
    first, second = (adapter.predict(tiny_network, client, x) for client in (start, after))
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [({"lr": -1}, "memo.lr"), ({"views": 0}, "memo.views"), ({"alpha": 2}, "memo.alpha=2 must lie")],
)
def test_refuses_impossible_parameters(parameters, message):
    with pytest.raises(UserError, match=message):
        MEMO(**parameters)
