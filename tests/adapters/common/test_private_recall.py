"""Recall with noise on all that is sent."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from fedctta.adapters.common.private_recall import MIN_IMAGES, PrivateRecall, add_noise, forget_waiting
from fedctta.adapters.recall import Recall
from fedctta.aggregators import Server, Uploads
from fedctta.aggregators.recall import Recall as Library
from fedctta.books.noisy_book import is_noisy
from fedctta.core.clients import by_loop, by_vmap, stack
from fedctta.core.randomness import keys
from fedctta.errors import UserError


def draw(count=10, seed=0):
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def walk(network, adapter, batches, client=None, first=0):
    client = client or adapter.init(network)
    with torch.no_grad():
        for t in range(first, first + batches):
            client, _ = adapter.adapt_and_predict(network, client, draw(seed=t))
    return client


@pytest.fixture
def adapter():
    return PrivateRecall(domains=4, noise=0.1, min_images=90)


def test_predictions_without_a_server_are_those_of_recall(tiny_network, adapter):
    plain, noisy = Recall(domains=4), adapter
    a, b = plain.init(tiny_network), noisy.init(tiny_network)
    with torch.no_grad():
        for t in range(12):
            a, first = plain.adapt_and_predict(tiny_network, a, draw(seed=t))
            b, second = noisy.adapt_and_predict(tiny_network, b, draw(seed=t))
            torch.testing.assert_close(first, second)
    assert all(torch.equal(tensor, b.private[name]) for name, tensor in a.private.items())
    torch.testing.assert_close(noisy.predict(tiny_network, b, draw()), plain.predict(tiny_network, a, draw()))


def test_nothing_exact_is_sent(tiny_network, adapter):
    """What is sent does not change when all that the device keeps for itself does, but for the number of images."""
    client = walk(tiny_network, adapter, 12)
    server = Library(domains=4)
    told = server.signal(tiny_network, client, draw())
    assert (told["name"] != 0).any()
    private = {
        n: t if n.startswith("shared.") or n == "time" else torch.randn_like(t.float()).to(t)
        for n, t in client.private.items()
    }
    assert is_noisy(private)
    again = server.signal(tiny_network, client._replace(private=private), draw(seed=9))
    assert all(torch.equal(tensor, again[name]) for name, tensor in told.items())
    assert set(told) == {"part", "name", "changed", "time", "belief"}


@pytest.mark.parametrize("pixels", [torch.zeros(3, 16, 16), torch.ones(3, 16, 16), 1e30 * torch.ones(3, 16, 16)])
def test_one_image_changes_what_is_collected_by_no_more_than_stated(tiny_network, adapter, pixels):
    book = adapter.noisy
    x = draw()
    other = x.clone()
    other[3] = pixels
    with torch.no_grad():
        a, b = (adapter.adapt(tiny_network, adapter.init(tiny_network), images).private for images in (x, other))
    numbers = sum(2 * len(tiny_network.state[f"{n}.running_mean"]) for n in tiny_network.norms)
    assert float((a["shared.look"] - b["shared.look"]).norm()) <= 2 * book.look_length * (1 + 1e-5)
    assert float((a["shared.moments"] - b["shared.moments"]).norm()) <= 2 * book.radius * numbers**0.5 * (1 + 1e-5)
    assert b["shared.moments"].isfinite().all()


def test_lifted_equals_looped(tiny_network, adapter):
    clients = stack(adapter.init(tiny_network), 3)
    clients = clients._replace(private=clients.private | {"key": keys(0, 3)})
    found = []
    for lift in (by_vmap, by_loop):
        now = clients
        with torch.no_grad():
            for t in range(11):
                x = torch.stack([draw(seed=10 * t + k) for k in range(3)])
                now, _ = lift(partial(adapter.adapt_and_predict, tiny_network))(now, x)
            now = lift(partial(adapter.receive, tiny_network))(now, x)
        found.append(now.private)
    for name, tensor in found[0].items():
        torch.testing.assert_close(tensor, found[1][name], atol=1e-3, rtol=1e-3, msg=name)
    one = now._replace(private={name: tensor[0] for name, tensor in found[0].items()})
    assert (Library(domains=4).signal(tiny_network, one, x)["name"] != 0).any()


def test_two_devices_exchange_what_they_have_seen(tiny_network, adapter):
    server = Server(tiny_network, by_vmap, 0, (3, 16, 16), 2, lambda count: torch.zeros(count, 3, 16, 16))
    aggregator = Library(domains=4)
    first = adapter.init(tiny_network)
    clients = [
        walk(tiny_network, adapter, 12, first._replace(private=first.private | {"key": key}), first=100 * k)
        for k, key in enumerate(keys(0, 2))
    ]
    told = [aggregator.signal(tiny_network, client, draw()) for client in clients]
    signals = {name: torch.stack([each[name] for each in told]) for name in told[0]}
    uploads = Uploads({}, signals, torch.ones(2, dtype=torch.bool))
    _, memory = aggregator.collaborate(server, uploads, {})
    assert memory["refused"].sum() == 0
    handed, _ = aggregator.step(server, uploads, {}, uploads.active, memory)
    mine = clients[0]._replace(private=clients[0].private | {name: t[0] for name, t in handed.items()})
    after = adapter.receive(tiny_network, mine, draw())
    assert (after.private["held"] > 0).any()
    assert (after.private["shared.held"] > 0).any()
    for name in ("heading", "place", "asked"):  # and not where exact looks have put the exact domains
        assert torch.equal(after.private[name], mine.private[name])
    assert after.private["part"].sum() == pytest.approx(float(clients[0].private["part"].sum()), rel=1e-3)


def test_going_back_and_a_gap_release_nothing_twice(tiny_network, adapter):
    early = walk(tiny_network, adapter, 4)
    late = walk(tiny_network, adapter, 8, early, first=4)
    back = adapter.go_back(early, late)
    assert all(torch.equal(back.private[n], t) for n, t in late.private.items() if n.startswith("shared."))
    assert torch.equal(back.private["part"], early.private["part"])
    gap = adapter.after_gap(late).private
    assert float(gap["shared.look"].norm() + gap["shared.moments"].norm() + gap["shared.images"]) == 0
    width = gap["shared.book"].shape[1]
    assert (gap["shared.part"][:, width:] == 0).all()
    assert torch.equal(gap["shared.part"][:, :width], late.private["shared.part"][:, :width])
    assert forget_waiting(gap).keys() == late.private.keys()


def test_a_device_draws_from_the_system(tiny_network, adapter):
    client = adapter.init(tiny_network)
    one, two = (adapter.draw_chance(client).private for _ in range(2))
    assert float(one["shared.given"]) == 1
    assert not torch.equal(one["shared.fresh"], two["shared.fresh"])


def test_parameters_are_kept_and_what_is_learnt_is_refused():
    noisy = add_noise(Recall(domains=7, prior=2.0), 0.3, 1)
    assert (noisy.domains, noisy.prior, noisy.sends_noise, noisy.min_images) == (7, 2.0, 0.3, MIN_IMAGES)
    assert Recall().with_noise(1.0, 200).min_images == 200
    assert Recall().sends_noise is None
    with pytest.raises(UserError, match=r"noise and epsilon do not cover what recall\.inner=tent learns"):
        Recall(inner="tent").with_noise(1.0)
