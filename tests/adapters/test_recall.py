"""A device that carries a book of domains."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from fedctta.adapters.recall import Recall
from fedctta.books import fused_notebook
from fedctta.books.rows import Layout, read_scale
from fedctta.books.weights import count_classes
from fedctta.core import appearance, fused_norms
from fedctta.core import network as networks
from fedctta.core.clients import Client, stack
from fedctta.core.network import Network
from fedctta.errors import UserError


def draw(kind, count=8, seed=0):
    """Images of two kinds that look different: noise, and smooth stripes with a little noise."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(count, 3, 16, 16, generator=generator)
    stripes = torch.linspace(0, 1, 16).expand(count, 3, 16, 16)
    return noise if kind == "noise" else 0.9 * stripes + 0.05 * noise


def walk(network, kinds, recall=None, client=None, reviews=False):
    recall = recall or Recall(domains=4)
    client = client or recall.init(network)
    logits = None
    with torch.no_grad():
        for t, kind in enumerate(kinds):
            x = draw(kind, seed=t)
            client, logits = recall.adapt_and_predict(network, client, x)
            if reviews and recall.is_due(client):
                client = recall.review(network, client, x)
    return client, logits


def read(network, client, name):
    layout = read_scale(network).layout
    return layout.of(client.private["part"], name)


def test_domains_are_told_apart_and_found_again(tiny_network):
    client, _ = walk(tiny_network, ["noise"] * 3 + ["stripes"] * 3 + ["noise"])
    assert (client.private["name"] != 0).sum() == 2
    images = read(tiny_network, client, "images")
    assert sorted(images.round().tolist(), reverse=True) == [32, 24, 0, 0]
    belief = client.private["belief"]
    assert belief.argmax() == images.argmax()
    assert belief.sum() == pytest.approx(1)


@pytest.mark.triton
@pytest.mark.parametrize("inner", ["none", "tent"])
def test_kernels_remember_and_predict_as_plain_torch_does(tiny_network, inner, monkeypatch):
    """Three clients in two domains."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network, recall = Network(tiny_network.module, device), Recall(domains=4, inner=inner)
    kinds = [["noise", "stripes", "noise"], ["noise", "noise", "stripes"], ["stripes", "noise", "noise"]]
    found = []
    for fused in (True, False):
        for place in (appearance, fused_norms, networks, fused_notebook):
            monkeypatch.setattr(place, "can_fuse", lambda *_, fused=fused: fused)
        clients, logits = stack(recall.init(network), 3), []
        for t, row in enumerate(kinds):
            x = torch.stack([draw(kind, seed=3 * t + k) for k, kind in enumerate(row)]).to(device)
            with torch.no_grad():
                clients, predicted = torch.func.vmap(partial(recall.adapt_and_predict, network))(clients, x)
                if t:
                    clients = torch.func.vmap(partial(recall.review, network))(clients, x)
            logits.append(predicted)
        found.append((clients.private, logits))
    for name, tensor in found[1][0].items():
        off = 5e-3 if tensor.is_floating_point() else 0
        torch.testing.assert_close(found[0][0][name], tensor, atol=off, rtol=off, msg=name)
    torch.testing.assert_close(found[0][1], found[1][1], atol=2e-3, rtol=2e-3)


def test_the_first_batch_of_a_domain_is_predicted_by_source_and_batch(tiny_network):
    """With weight 0 by the source; with weight 1 and a source worth nothing by the batch's statistics."""
    from fedctta.core.norms import refreshed

    x = draw("noise")
    source = Recall(start=0.0).predict(tiny_network, Recall(start=0.0).init(tiny_network), x)
    torch.testing.assert_close(source, tiny_network({}, x).logits)
    batch = Recall(start=1.0, largest=1.0, prior=0.0)
    alone = batch.predict(tiny_network, batch.init(tiny_network), x)
    torch.testing.assert_close(alone, tiny_network({}, x, refreshed()).logits, atol=1e-4, rtol=1e-3)


def test_a_known_domain_is_predicted_with_all_its_images(tiny_network):
    """By hand: with weight 1 and no source, the pass normalises with the means over both batches."""
    from fedctta.books.blending import Blend, normalise_with
    from fedctta.books.rows import encode_statistics

    recall, scale = Recall(start=1.0, largest=1.0, prior=0.0), read_scale(tiny_network)
    with torch.no_grad():
        first, second = draw("noise", 8, 0), draw("noise", 4, 1)
        client, _ = recall.adapt_and_predict(tiny_network, recall.init(tiny_network), first)
        measured = encode_statistics(
            scale,
            tiny_network(
                {}, first, normalise_with(scale, Blend(torch.zeros(2 * len(scale.mean)), torch.ones(())))
            ).statistics,
        )
        client, logits = recall.adapt_and_predict(tiny_network, client, second)
        expected = tiny_network({}, second, normalise_with(scale, Blend(measured * 8 / 12, torch.tensor(4 / 12))))
    torch.testing.assert_close(logits, expected.logits, atol=1e-4, rtol=1e-3)


def test_only_passes_with_the_largest_weight_measure(tiny_network):
    client, _ = walk(tiny_network, ["noise"], Recall(start=0.6, largest=0.8))
    assert read(tiny_network, client, "measured").sum() == 0
    assert read(tiny_network, client, "images").sum() == 8
    client, _ = walk(tiny_network, ["noise"], Recall(start=0.8, largest=0.8))
    assert read(tiny_network, client, "measured").sum() == 8
    reviewed, _ = walk(tiny_network, ["noise"], Recall(start=0.5), reviews=True)
    assert read(tiny_network, reviewed, "measured").sum() == 8  # the review measured it
    again, _ = walk(tiny_network, ["noise"], Recall(start=0.8, largest=0.8), reviews=True)
    assert read(tiny_network, again, "measured").sum() == 8  # and does not measure twice


def test_a_review_measures_with_the_largest_weight():
    """It keeps the moments that a pass with this weight keeps; deeper layers have others with another weight."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)]
    network = Network(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).eval())
    choices = [{"start": 0.6, "largest": 0.6}, {"start": 0.0, "largest": 0.6}, {"start": 1.0, "largest": 1.0}]
    clients = [walk(network, ["noise"], Recall(**c, review_rate=0.0), reviews=True)[0] for c in choices]
    predicted, reviewed, other = (read(network, client, "moments") for client in clients)
    torch.testing.assert_close(reviewed, predicted, atol=1e-3, rtol=1e-3)
    assert not torch.allclose(other, predicted, atol=0.1)


def test_the_first_images_of_a_domain_are_measured_whatever_its_weight(tiny_network):
    recall = Recall(start=0.0, review_rate=0.0, soon=12.0, survey=0.0)
    client, _ = walk(tiny_network, ["noise"] * 5, recall, reviews=True)
    assert read(tiny_network, client, "measured").sum() == pytest.approx(16, rel=5e-2)


def test_a_review_compares_three_weights_on_pictures_and_their_mirror_images():
    """Doubt is the entropy of a prediction, drawn to that of the mean of it and the mirror image's prediction."""
    torch.manual_seed(0)
    sides = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 2)), nn.Flatten())
    head = nn.Linear(8, 3)
    head.weight.data *= 20  # sure of what it sees
    network, x = Network(nn.Sequential(sides, head).eval()), draw("stripes")
    client, _ = walk(network, ["stripes"], Recall(start=1.0, largest=1.0))
    assert Recall(start=1.0, largest=1.0).is_due(client)
    plain, mirrored = (network({}, view).logits.softmax(-1) for view in (x, x.flip(-1)))
    once, both = (torch.special.entr(p).sum(-1).mean().item() for p in (plain, (plain + mirrored) / 2))
    assert abs(both - once) > 0.01
    for share in (0.0, 0.25, 1.0):
        with torch.no_grad():
            reviewed = Recall(start=1.0, largest=1.0, mirror=share).review(network, client, x)
        scored = read(network, reviewed, "scored").sum()
        assert scored == pytest.approx(0.1 * 8 * 8 / 58)  # of eight images measured, in the only domain
        doubt = read(network, reviewed, "doubt")[:, 0].sum() / scored
        assert doubt == pytest.approx((1 - share) * once + share * both, rel=1e-4)
        seen = read(network, reviewed, "classes").sum(0)
        torch.testing.assert_close(seen, count_classes(plain), atol=1e-5, rtol=1e-4)


def test_where_a_domain_is_not_measured_some_batches_are_only_measured(tiny_network):
    """A device alone takes one pass for them, not three; many compute the same."""
    recall = Recall(start=0.5, review_rate=0.0, soon=0.0, survey=0.45)
    client, due = recall.init(tiny_network), []
    for t in range(8):
        client, _ = walk(tiny_network, ["noise"], recall, client)
        due.append(bool(recall.is_due(client)))
        if due[-1]:
            many = torch.func.vmap(partial(recall.review, tiny_network))(stack(client, 1), draw("noise", seed=t)[None])
            client = recall.review(tiny_network, client, draw("noise", seed=t))
            torch.testing.assert_close(many.private["part"][0], client.private["part"], atol=1e-3, rtol=1e-3)
    assert due == [True, False] * 4
    assert read(tiny_network, client, "scored").sum() == 0
    assert read(tiny_network, client, "measured").sum() == pytest.approx(32, rel=1e-2)
    client, _ = walk(tiny_network, ["noise"], recall, client)
    assert recall.is_due(client)
    assert not replace(recall, enough=16.0).is_due(client)


def test_without_reviews_a_domain_is_measured_and_never_due(tiny_network):
    usual = replace(Recall(), start=0.2).without_reviews()
    client, _ = walk(tiny_network, ["noise"], usual, reviews=True)
    client, _ = walk(tiny_network, ["noise"], usual, client, reviews=True)
    assert read(tiny_network, client, "scored").sum() == 0
    assert read(tiny_network, client, "measured").sum() == pytest.approx(16, rel=1e-2)
    assert not usual.is_due(client)


def test_reviews_become_seldom(tiny_network):
    due, recall = [], Recall(review_rate=1.0, poor=0.0)
    client = recall.init(tiny_network)
    for t in range(30):
        client, _ = walk(tiny_network, ["noise"], recall, client)
        due.append(bool(recall.is_due(client)))
        if due[-1]:
            client = recall.review(tiny_network, client, draw("noise", seed=t))
    assert due[0]
    assert sum(due) < 5


def test_one_image_at_a_time(tiny_network):
    recall = Recall(domains=8)
    client = recall.init(tiny_network)
    with torch.no_grad():
        for t in range(12):
            client, logits = recall.adapt_and_predict(tiny_network, client, draw("noise", 1, t))
            assert logits.isfinite().all()
    assert read(tiny_network, client, "images").sum() == pytest.approx(12, rel=1e-3)


def test_a_full_book_makes_room_for_a_new_domain(tiny_network):
    client, _ = walk(tiny_network, ["noise", "noise", "stripes"], Recall(domains=1))
    assert read(tiny_network, client, "images").tolist() == [8]


def test_old_sums_fade_with_time(tiny_network):
    client, _ = walk(tiny_network, ["noise"] * 4, Recall(half_life=8.0))
    images = read(tiny_network, client, "images")
    assert images.max() == pytest.approx(8 + 4 + 2 + 1, rel=1e-3)


def handed(client, **tensors):
    return client._replace(private=client.private | tensors)


def test_a_book_is_taken_up_and_what_was_seen_moves_to_its_places(tiny_network):
    recall = Recall(domains=4)
    client, _ = walk(tiny_network, ["noise"] * 2 + ["stripes"], recall)
    noise, stripes = client.private["name"][:2].tolist()
    book = torch.zeros_like(client.private["book"])
    book[2, 0] = 500.0
    client = handed(
        client,
        book=book,
        heading=torch.tensor([0, 77, 88, 0]),
        place=torch.tensor([2, -1, -1, -1]),  # the server knows the noise, as 88, and not yet the stripes
        asked=torch.tensor([noise, 0, 0, 0]),
        received=torch.tensor(1000),
    )
    after = recall.receive(tiny_network, client, draw("noise"))
    assert after.private["name"].tolist() == [stripes, 77, 88, 0]
    assert read(tiny_network, after, "images").round().tolist() == [8, 0, 16, 0]
    assert after.private["belief"].argmax() == 0
    assert after.private["time"] == 1000
    page = recall.notebook.page(Layout(0), after.private)
    assert page.short[2, 0] == pytest.approx(500 + 16 * 2 ** (-(1000 - 16) / 20_000), rel=1e-3)
    assert page.book.tolist() == [0, 1, 1, 0]


def test_two_domains_that_turn_out_to_be_one_are_united(tiny_network):
    recall = Recall(domains=4)
    client, _ = walk(tiny_network, ["noise"] * 20, recall)
    twin = {name: client.private[name].clone() for name in ("part", "changed", "name")}
    twin["part"][1], twin["changed"][1], twin["name"][1] = twin["part"][0], twin["changed"][0], 5
    united = recall.notebook.unite(read_scale(tiny_network).layout, client.private | twin)
    assert united["name"].tolist() == [int(client.private["name"][0]), 0, 0, 0]
    torch.testing.assert_close(united["part"][0], 2 * client.private["part"][0])
    alone = recall.notebook.unite(read_scale(tiny_network).layout, client.private)
    torch.testing.assert_close(alone["part"], client.private["part"])


def test_names_are_a_devices_own(tiny_network):
    recall = Recall()
    one, other = (recall.init(tiny_network) for _ in range(2))
    other = Client({}, other.private | {"key": torch.tensor(12345)})
    first, second = (walk(tiny_network, ["noise"], recall, client)[0].private["name"].max() for client in (one, other))
    assert 0 < first != second > 0


def test_one_device_and_many_compute_the_same(tiny_network):
    """A device alone leaves out what does not happen; many compute it and choose."""
    recall = Recall(domains=4, start=1.0, largest=1.0)
    kinds = ["noise", "noise", "stripes", "noise", "stripes"]
    alone, _ = walk(tiny_network, kinds, recall)
    lifted = torch.func.vmap(partial(recall.adapt_and_predict, tiny_network))
    clients = stack(recall.init(tiny_network), 2)
    with torch.no_grad():
        for t, kind in enumerate(kinds):  # the second device sees the other kind
            other = "noise" if kind == "stripes" else "stripes"
            clients, _ = lifted(clients, torch.stack([draw(kind, seed=t), draw(other, seed=t)]))
    for name, tensor in alone.private.items():
        torch.testing.assert_close(clients.private[name][0], tensor, atol=1e-3, rtol=1e-3, msg=name)


@pytest.mark.parametrize(
    "wrong",
    [
        {"domains": 0},
        {"start": 1.5},
        {"half_life": 0.0},
        {"strange": 0.5},
        {"survey": -1.0},
        {"enough": -1.0},
        {"soon": -1.0},
        {"largest": 1.5},
        {"mirror": 1.5},
        {"start": 0.95},
    ],
)
def test_wrong_parameters_are_refused(wrong):
    with pytest.raises(UserError, match=r"recall\.\w+=.* must"):
        Recall(**wrong)


def test_who_goes_back_to_an_earlier_book_does_not_go_back_in_time(tiny_network):
    adapter = Recall(domains=4)
    early = adapter.adapt(tiny_network, adapter.init(tiny_network), torch.rand(6, 3, 8, 8))
    late = adapter.adapt(tiny_network, early, torch.rand(6, 3, 8, 8))
    back = adapter.go_back(early, late)
    assert int(back.private["time"]) == 12
    assert torch.equal(back.private["part"], early.private["part"])


def test_a_book_that_answers_an_earlier_name_or_place_is_taken_up_by_name(tiny_network):
    """Between an upload and its answer another book may have come: names have changed, and places too."""
    adapter = Recall(domains=4)
    client = adapter.adapt(tiny_network, adapter.init(tiny_network), torch.rand(6, 3, 8, 8))
    (own,) = client.private["name"].nonzero().flatten().tolist()
    name = int(client.private["name"][own])
    for heading, asked in (([3, name, 0, 0], [0, 0, 0, 0]), ([3, 4, 0, 0], [9, 9, 9, name])):
        place = [-1, -1, -1, 1] if name in asked else [-1] * 4
        sent = {key: torch.tensor(value) for key, value in (("heading", heading), ("asked", asked), ("place", place))}
        taken = adapter.receive(tiny_network, client._replace(private=client.private | sent), torch.zeros(0)).private
        assert taken["part"][:, 0].tolist() == [0, 6, 0, 0]
        assert taken["name"].tolist() == heading


def test_mirror_images_that_have_no_effect_are_refused(tiny_module):
    dense = Network(tiny_module, dense=True)
    with pytest.raises(UserError, match="has no effect on a model that predicts every pixel"):
        Recall(mirror=0.5).check(dense, 4)
    Recall().check(dense, 4)
    Recall(mirror=0.5).check(Network(tiny_module), 4)
