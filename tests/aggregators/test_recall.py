"""The server that adds up the books of all devices."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from fedctta.adapters import adapters
from fedctta.adapters.recall import Recall as RecallAdapter
from fedctta.aggregators import Server, Uploads
from fedctta.aggregators.common.mixing import matrix
from fedctta.aggregators.fedavg import FedAvg
from fedctta.aggregators.local import Local
from fedctta.aggregators.recall import Recall
from fedctta.books.library import Shelf, to_tensors
from fedctta.core.clients import by_loop, by_vmap, stack
from fedctta.engine.rounds import Federation
from fedctta.errors import UserError

DEVICES = 3


@pytest.fixture
def federation(tiny_network):
    server = Server(tiny_network, by_vmap, 0, (3, 8, 8), DEVICES, lambda count: torch.zeros(count, 3, 8, 8))
    return Federation(RecallAdapter(domains=4), Recall(domains=4), server, interval=2)


def batches(rounds, devices=DEVICES, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rounds, devices, 6, 3, 8, 8, generator=generator)


def play(federation, rounds=4, active=None):
    state, outcomes = federation.start(), []
    everybody = torch.ones(DEVICES, dtype=torch.bool)
    with torch.no_grad():
        for t, x in enumerate(batches(rounds)):
            there = everybody if active is None else active[t]
            state, outcome = federation.play(state, t, x[there], there, None)
            outcomes.append(outcome)
    return state, outcomes


def images(state, name="book"):
    return state.clients.private[name][..., 0]


def test_every_device_is_handed_what_the_others_have_seen(federation):
    state, _ = play(federation, 2)
    part, book = images(state, "part"), images(state)
    assert part.sum(1).round().tolist() == [12, 12, 12]
    assert book.sum(1).round().tolist() == [24, 24, 24]
    assert (state.clients.private["heading"] == state.clients.private["heading"][0]).all()
    known = state.clients.private["heading"] != 0
    assert (state.clients.private["name"][known] == state.clients.private["heading"][known]).all()


def test_nothing_is_counted_twice_after_many_exchanges(federation):
    state, _ = play(replace(federation, interval=1), 5)
    assert images(state, "part").sum(1) == pytest.approx([30, 30, 30], rel=0.03)
    assert images(state).sum(1) == pytest.approx([60, 60, 60], rel=0.03)


def test_rows_of_w_say_who_learns_from_whom(federation):
    _, outcomes = play(federation, 2)
    w = matrix(outcomes[-1].weights)
    torch.testing.assert_close(w.sum(1), torch.ones(DEVICES))
    torch.testing.assert_close(w, torch.full((DEVICES, DEVICES), 1 / DEVICES), atol=0.02, rtol=0)  # all look alike
    assert outcomes[0].weights is None


def test_what_is_received_counts_from_the_next_batch_on(federation):
    alone = replace(federation, interval=99)
    (_, shared), (_, own) = play(federation, 3), play(alone, 3)
    for t in (0, 1):
        assert torch.equal(shared[t].logits, own[t].logits)
    assert not torch.allclose(shared[2].logits, own[2].logits)


def test_an_absent_device_keeps_its_book_and_its_part_stays_with_the_server(federation):
    there = torch.tensor([[True, True, True]] * 2 + [[True, False, True]] * 2)
    before, _ = play(federation, 2, there)
    after, _ = play(federation, 4, there)
    for name in ("book", "part", "name", "belief"):
        assert torch.equal(after.clients.private[name][1], before.clients.private[name][1])
    assert images(after)[0].sum() == pytest.approx(24 + 12, rel=0.01)


def test_one_device_alone_is_handed_nothing(tiny_network):
    server = Server(tiny_network, by_vmap, 0, (3, 8, 8), 1, lambda count: torch.zeros(count, 3, 8, 8))
    lonely = Federation(RecallAdapter(domains=4), Recall(domains=4), server, interval=1)
    state, outcome = lonely.start(), None
    with torch.no_grad():
        for t, x in enumerate(batches(3, 1)):
            state, outcome = lonely.play(state, t, x, torch.ones(1, dtype=torch.bool), None)
    assert images(state).abs().max() < 1e-3
    assert matrix(outcome.weights).tolist() == [[1.0]]


def test_the_order_of_devices_does_not_matter(federation):
    order = torch.tensor([2, 0, 1])

    def served(state, uploads):
        aggregator, server = federation.aggregator, federation.server
        w, memory = aggregator.collaborate(server, uploads, {})
        return w, aggregator.step(server, uploads, {}, uploads.active, memory)[0]

    state, _ = play(replace(federation, interval=99), 2)
    signals = by_loop(partial(federation.aggregator.signal, federation.network))(state.clients, batches(1)[0])
    uploads = Uploads({}, signals, torch.ones(DEVICES, dtype=torch.bool))
    w, sent = served(state, uploads)
    permuted = uploads._replace(signals={name: tensor[order] for name, tensor in signals.items()})
    w_permuted, sent_permuted = served(state, permuted)
    torch.testing.assert_close(w_permuted, w[order][:, order])
    for name in ("book", "heading", "place"):
        torch.testing.assert_close(sent_permuted[name], sent[name][order])


def test_domains_on_too_few_images_stay_at_home(federation):
    shy = replace(federation, aggregator=Recall(domains=4, min_images=13))
    state, _ = play(shy, 2)
    assert images(state).sum() == 0
    bold, _ = play(replace(federation, aggregator=Recall(domains=4, min_images=11)), 2)
    assert images(bold).sum() > 0


def spoil(signals, spoilt):
    """Let device 0 send something else."""
    return {name: torch.cat([spoilt(name, signal[:1]), signal[1:]]) for name, signal in signals.items()}


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda name, signal: -signal if name == "part" else signal,
        lambda name, signal: 100 * signal if name == "part" else signal,
        lambda name, signal: signal * torch.nan if name == "part" else signal,
        lambda name, signal: torch.full_like(signal, -7) if name == "changed" else signal,
    ],
)
def test_what_cannot_be_true_is_refused_and_counted(federation, spoilt):
    aggregator, server = federation.aggregator, federation.server
    state, _ = play(replace(federation, interval=99), 2)
    signals = by_loop(partial(aggregator.signal, federation.network))(state.clients, batches(1)[0])
    everybody = torch.ones(DEVICES, dtype=torch.bool)
    _, memory = aggregator.collaborate(server, Uploads({}, signals, everybody), {})
    uploads = Uploads({}, spoil(signals, spoilt), everybody)
    w, after = aggregator.collaborate(server, uploads, memory)
    assert after["refused"].tolist() == [1, 0, 0]
    assert w.isfinite().all()
    for name in ("rows", "device", "version"):  # what it said before stays
        assert torch.equal(after[name], memory[name])
    sent, _ = aggregator.step(server, uploads, {}, everybody, after)
    assert sent["book"].isfinite().all()


def test_what_a_device_said_is_withdrawn_from_the_memory(federation):
    aggregator, server = federation.aggregator, federation.server
    state, _ = play(replace(federation, interval=99), 2)
    signals = by_loop(partial(aggregator.signal, federation.network))(state.clients, batches(1)[0])
    everybody = torch.ones(DEVICES, dtype=torch.bool)
    without = Uploads({}, signals, torch.tensor([True, True, False]))
    _, all_three = aggregator.collaborate(server, Uploads({}, signals, everybody), {})
    _, two = aggregator.collaborate(server, without, {})
    nobody = without._replace(active=~everybody)
    found = [aggregator.step(server, nobody, {}, everybody, m)[0] for m in (aggregator.withdraw(all_three, 2), two)]
    for name in ("book", "heading"):
        torch.testing.assert_close(found[0][name], found[1][name])


def test_a_domain_has_no_more_parts_than_there_is_room_for(federation):
    """Also when no name is new."""
    small = replace(federation, aggregator=Recall(domains=4, parts=2), interval=1)
    state, _ = play(small, 5)
    assert torch.bincount(state.memory["domain"]).tolist() == [2] * len(state.memory["domain"].unique())


def test_an_upload_that_is_older_than_the_last_changes_nothing(federation):
    aggregator, server = federation.aggregator, federation.server
    everybody, uploads = torch.ones(DEVICES, dtype=torch.bool), []
    for rounds in (2, 3):
        state, _ = play(replace(federation, interval=99), rounds)
        signals = by_loop(partial(aggregator.signal, federation.network))(state.clients, batches(1)[0])
        uploads.append(Uploads({}, signals, everybody))
    other = {**uploads[0].signals, "name": uploads[0].signals["name"] * 2}  # it had other names then
    _, memory = aggregator.collaborate(server, uploads[1], {})
    _, after = aggregator.collaborate(server, uploads[0]._replace(signals=other), memory)
    assert all(torch.equal(after[name], memory[name]) for name in memory)


def test_clients_without_a_book_have_nothing_to_add(tiny_network):
    bn = adapters.create("bn")
    clients = stack(bn.init(tiny_network), 2)
    server = Server(tiny_network, by_vmap, 0, (3, 8, 8), 2, lambda count: torch.zeros(count, 3, 8, 8))
    assert Recall().signal(tiny_network, bn.init(tiny_network), torch.zeros(2, 3, 8, 8)) == {}
    w, memory = Recall().collaborate(server, Uploads(clients.own, {}, torch.ones(2, dtype=torch.bool)), {})
    assert torch.equal(w, torch.eye(2))
    assert memory == {}


def test_a_server_that_mixes_models_has_nothing_to_mix(tiny_network):
    own = RecallAdapter().init(tiny_network).own
    with pytest.raises(UserError, match=r"mixes models, and adapter 'recall' changes nothing.* use aggregator=recall"):
        FedAvg().require_partner("recall", own)
    Local().require_partner("recall", own)
    Recall().require_partner("recall", own)
    FedAvg().require_partner("bn", tiny_network.statistics)


def test_the_server_tells_which_domains_devices_were_in_the_latest_first():
    aggregator = Recall(domains=4)
    assert aggregator.locate({}) == {}
    shelf = Shelf.empty(3)._replace(
        rows=torch.zeros(5, 3),
        device=torch.tensor([0, 0, 2, 2, 2]),
        name=torch.tensor([11, 12, 13, 14, 15]),
        version=torch.tensor([30, 50, 20, 70, 60]),
        domain=torch.tensor([3, 1, 1, 0, 0]),
    )
    assert aggregator.locate(to_tensors(shelf)) == {0: [1, 3], 2: [0, 1]}
    assert FedAvg().locate({}) == {}
