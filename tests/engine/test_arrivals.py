"""Rounds in which not everybody is there, and uploads that come late."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedctta.adapters import adapters
from fedctta.aggregators import Server, Uploads, aggregators
from fedctta.aggregators.common.mixing import matrix, restrict
from fedctta.aggregators.fedavg import FedAvg
from fedctta.core.clients import by_loop, by_vmap
from fedctta.core.tensors import choose_rows
from fedctta.engine.rounds import Federation
from fedctta.engine.simulation import simulate
from fedctta.streams import ABSENT, build
from fedctta.streams.arrivals import Arrivals
from fedctta.streams.clusters import NIID
from fedctta.uploads.late_uploads import Late
from fedctta.uploads.robust import Robust
from fedctta.uploads.stages import Transit

METHODS = sorted(aggregators.classes())


def federation(network, adapter="bn", aggregator="fedavg", clients=4, late=None, **parameters):
    server = Server(network, by_vmap, 0, (3, 8, 8), clients, lambda count: torch.zeros(count, 3, 8, 8))
    method = aggregators.create(aggregator, parameters) if isinstance(aggregator, str) else aggregator
    return Federation(
        adapters.create(adapter, {"side": 8} if adapter == "rotta" else {}), method, server, 1, stages=(late or Late(),)
    )


def slow(aggregator):
    return {"epochs": 2} if aggregator == "fedtsa" else {}


@pytest.mark.parametrize("aggregator", METHODS)
@pytest.mark.parametrize("adapter", ["bn", "tent", "bpa"])
def test_with_all_there_and_on_time_a_run_is_the_synchronous_one_bit_for_bit(
    aggregator, adapter, tiny_network, domains
):
    if (aggregator == "fedbn" and adapter == "bn") or aggregator == "pfedbbn":
        pytest.skip("does not aggregate what this adapter owns")
    stream = build(NIID(clusters=2), domains, clients=4, slots=2, batch=4, seed=0)
    punctual = replace(stream, delay=np.zeros_like(stream.domain, dtype=np.int64))
    plain = simulate(federation(tiny_network, adapter, aggregator, **slow(aggregator)), stream)
    mailed = simulate(federation(tiny_network, adapter, aggregator, **slow(aggregator)), punctual)
    assert torch.equal(plain.correct, mailed.correct)
    assert torch.equal(plain.entropy, mailed.entropy)
    assert torch.equal(plain.matrices, mailed.matrices)
    assert torch.equal(plain.bytes, mailed.bytes)


class Watching(FedAvg):
    """FedAvg that writes down what it is shown."""

    def __init__(self):
        object.__setattr__(self, "seen", [])

    def collaborate(self, server, uploads, memory):
        self.seen.append(uploads)
        return super().collaborate(server, uploads, memory)


def rounds(federation, network, delays, active=None):
    """Play one round for every row of delays on random batches; return states and outcomes."""
    state, told = federation.start(), []
    generator = torch.Generator().manual_seed(0)
    for t, delay in enumerate(torch.tensor(delays)):
        there = torch.ones(len(delay), dtype=torch.bool) if active is None else torch.tensor(active[t])
        x = torch.rand(int(there.sum()), 4, 3, 8, 8, generator=generator)
        with torch.no_grad():
            state, outcome = federation.play(state, t, x, there, None, None, delay)
        told.append((state, outcome))
    return told


def test_a_late_upload_comes_when_it_is_due_with_the_trust_of_its_age(tiny_network):
    watching = Watching()
    played = rounds(
        federation(tiny_network, aggregator=watching, clients=2, late=Late(decay=0.5)),
        tiny_network,
        [[0, 2], [0, 3], [0, 0], [0, 0]],
        active=[[True, True], [True, False], [True, False], [True, False]],
    )
    trusts = [uploads.trust.tolist() for uploads in watching.seen]
    assert trusts == [[1, 0], [1, 0], [1, 0.25], [1, 0]]
    name = next(iter(watching.seen[0].own))
    sent = played[0][0].clients.own[name][1]  # it keeps its model: what it holds is what it sent
    assert torch.equal(watching.seen[2].own[name][1], sent)
    assert matrix(played[2][1].weights)[0].tolist() == pytest.approx([0.8, 0.2])
    assert matrix(played[2][1].weights)[1].tolist() == [0, 1]


def test_a_late_upload_may_be_refused(tiny_network):
    watching = Watching()
    rounds(
        federation(tiny_network, aggregator=watching, clients=2, late=Late("refuse")),
        tiny_network,
        [[0, 1], [0, 0]],
        active=[[True, True], [True, False]],
    )
    assert [uploads.trust.tolist() for uploads in watching.seen] == [[1, 0], [1, 0]]


@pytest.mark.parametrize(
    ("last", "weights", "trust"),
    [
        (0, [0.25, 0.5, 1], 1),  # the fresh upload of round 2 and both late ones
        (1, [0.25, 0.5, 0], 0.5),  # late a third time: the two that are there, and not the one on its way
    ],
)
def test_all_uploads_of_a_client_that_are_there_count_by_their_age(last, weights, trust, tiny_network):
    """Client 1 is late by 2 rounds in round 0 and by 1 in round 1: both uploads arrive in round 2."""
    punctual, watching = Watching(), Watching()
    rounds(federation(tiny_network, aggregator=punctual, clients=2), tiny_network, [[0, 0]] * 3)
    delays = [[0, 2], [0, 1], [0, last]]
    played = rounds(federation(tiny_network, aggregator=watching, clients=2, late=Late()), tiny_network, delays)
    assert [uploads.trust.tolist() for uploads in watching.seen] == [[1, 0], [1, 0], [1, trust]]
    for name, held in watching.seen[2].own.items():
        sent = torch.stack([uploads.own[name][1] for uploads in punctual.seen])  # statistics of a batch: as if late
        torch.testing.assert_close(held[1], torch.tensordot(torch.tensor(weights) / sum(weights), sent, 1))
        assert torch.equal(held[0], punctual.seen[2].own[name][0])
    assert matrix(played[2][1].weights)[0].tolist() == pytest.approx([1 / (1 + trust), trust / (1 + trust)])
    assert played[2][1].bytes_up == played[0][1].bytes_up  # every upload is counted when it is sent


def test_what_late_uploads_count_shows_while_their_clients_are_there(tiny_network, domains):
    stream = build(NIID(clusters=2), domains, clients=4, slots=3, batch=4, seed=0, stragglers=0.5, delay=3)
    ways = [Late(decay=0.1), Late(decay=0.5), Late(decay=1.0), Late("refuse")]
    found = [simulate(federation(tiny_network, late=late), stream).entropy for late in ways]
    for i, one in enumerate(found):
        assert not any(torch.equal(one, other) for other in found[:i])


def test_an_upper_bound_judges_a_late_upload_by_the_domain_it_was_sent_in(tiny_network):
    """Client 1 sends in domain 0 and moves on to 1, where client 2 is. In round 1 its late upload is there alone."""
    played = federation(tiny_network, aggregator="oracle", clients=3)
    everybody, generator = torch.ones(3, dtype=torch.bool), torch.Generator().manual_seed(0)
    x, state, found = torch.rand(3, 3, 4, 3, 8, 8, generator=generator), played.start(), []
    steps = [([0, 0, 1], [0, 1, 0]), ([0, 1, 1], [0, 1, 0]), ([0, 1, 1], [0, 0, 0])]
    for t, (domain, delay) in enumerate(steps):
        with torch.no_grad():
            step = (torch.tensor(domain), None, torch.tensor(delay))
            state, outcome = played.play(state, t, x[t], everybody, *step)
        found.append(matrix(outcome.weights))
    assert found[1][0].tolist() == pytest.approx([2 / 3, 1 / 3, 0])
    assert found[1][2].tolist() == [0, 0, 1]
    assert found[2][2].tolist() == [0, 0.5, 0.5]


def test_an_upper_bound_does_not_blend_uploads_of_two_domains():
    fresh, old = torch.tensor([[3.0], [5.0]]), torch.tensor([[1.0], [2.0]])
    for now, held in ((0, 4.0), (1, 5.0)):  # client 1 sent 2 in domain 0; now it sends 5 in domain 0 or 1
        post = {"0.due": torch.tensor([-1, 1]), "0.own.a": old, "0.domain": torch.tensor([0, 0])}
        uploads = Uploads({"a": fresh}, {}, torch.ones(2, dtype=torch.bool), torch.tensor([0, now]))
        there = torch.ones(2, dtype=torch.bool)
        transit = Transit(1, uploads, there, there, delay=torch.zeros(2, dtype=torch.int64), post=post)
        got = Late().handle(None, transit).uploads
        assert got.own["a"].tolist() == [[3.0], [pytest.approx(held)]]
        assert got.domain.tolist() == [0, now]


@pytest.mark.parametrize("lift", [by_vmap, by_loop])
def test_when_all_are_late_nobody_receives(lift, tiny_network):
    played = federation(tiny_network, "bpa", "ugsa", clients=2)
    played = replace(played, server=replace(played.server, lift=lift))
    _state, outcome = rounds(played, tiny_network, [[2, 1]])[0]
    assert torch.equal(matrix(outcome.weights), torch.eye(2))
    assert outcome.logits.isfinite().all()


def test_who_is_late_takes_no_part_and_keeps_its_model(tiny_network):
    alone = rounds(federation(tiny_network, aggregator="local", clients=2), tiny_network, [[0, 0]])
    late = rounds(federation(tiny_network, clients=2), tiny_network, [[0, 3]])
    for name, tensor in late[0][0].clients.own.items():
        assert torch.equal(tensor[1], alone[0][0].clients.own[name][1])
    assert torch.equal(late[0][1].logits[1], alone[0][1].logits[1])


@pytest.mark.parametrize("aggregator", METHODS)
@pytest.mark.parametrize("present", range(5))
def test_every_aggregator_works_with_any_number_present(aggregator, present, tiny_network):
    """From nobody to all, from the first round on; those away keep what they have."""
    adapter = adapters.create("bbn" if aggregator == "pfedbbn" else "tent")
    played = Federation(adapter, aggregators.create(aggregator, slow(aggregator)), federation(tiny_network).server, 1)
    state, generator = played.start(), torch.Generator().manual_seed(1)
    there = torch.arange(4) < present
    domain = torch.where(there, torch.arange(4) % 2, ABSENT) if played.aggregator.upper_bound else None
    for t in range(3):
        x = torch.rand(4, 4, 3, 8, 8, generator=generator)
        late = (~there).long()
        with torch.no_grad():
            state, outcome = played.play(state, t, x, torch.ones(4, dtype=torch.bool), domain, None, late * 99)
        assert outcome.logits.isfinite().all()
        assert all(tensor.isfinite().all() for tensor in state.clients.own.values())
        if outcome.weights is not None:
            torch.testing.assert_close(matrix(outcome.weights).sum(1), torch.ones(4))
            assert torch.equal(matrix(outcome.weights)[~there], torch.eye(4)[~there])
            assert (matrix(outcome.weights)[there][:, ~there] == 0).all()


@pytest.mark.parametrize("aggregator", METHODS)
def test_where_nothing_has_come_the_server_stays_as_it_is(aggregator, tiny_network):
    """All are there in round 0, late in round 1, and their uploads arrive in round 2, when all are late again."""
    adapter = "bbn" if aggregator == "pfedbbn" else "tent"
    played = federation(tiny_network, adapter, aggregator, clients=3, **slow(aggregator))
    state, generator = played.start(), torch.Generator().manual_seed(1)
    everybody, memories = torch.ones(3, dtype=torch.bool), []
    for t, late in enumerate((0, 1, 1)):
        x = torch.rand(3, 4, 3, 8, 8, generator=generator)
        domain = torch.arange(3) % 2 if played.aggregator.upper_bound else None
        with torch.no_grad():
            state, outcome = played.play(state, t, x, everybody, domain, None, torch.full((3,), late))
        memories.append(state.memory)
    if outcome.weights is not None:
        assert torch.equal(matrix(outcome.weights), torch.eye(3))
    after_all, after_none, after_late = memories
    assert after_none.keys() == after_all.keys()
    assert all(torch.equal(after_none[name], after_all[name]) for name in after_all)
    moved = [not torch.equal(after_late[name], kept) for name, kept in after_all.items() if name.startswith("global.")]
    assert all(moved)  # who keeps a model learns from what is late, though nobody receives


@pytest.mark.parametrize("aggregator", ["ugsa", "fedavgm"])
def test_a_newcomer_starts_from_what_the_server_keeps(aggregator, tiny_network):
    """After client 0's visit client 1 begins where the server's model is, and client 2 has not been touched."""
    played = federation(tiny_network, "tent", aggregator, clients=3)
    stream_active = [[True, False, False], [False, True, False]]
    state, generator = played.start(), torch.Generator().manual_seed(0)
    source = state.clients.own
    with torch.no_grad():
        for t, there in enumerate(torch.tensor(stream_active)):
            x = torch.rand(1, 4, 3, 8, 8, generator=generator)
            kept = played.aggregator.keeps(state.memory)
            joined = there if t else None
            if t:
                greeted, _ = played.welcome(state, x, there, there)
                assert all(torch.equal(greeted.own[name][1], kept[name]) for name in kept)
                assert any(not torch.equal(greeted.own[name][1], source[name][1]) for name in kept)
                assert all(torch.equal(greeted.own[name][2], source[name][2]) for name in kept)
            state, _ = played.play(state, t, x, there, None, joined)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_pattern_of_joins_leaves_and_late_uploads(data, tiny_network):
    """200 rounds: models stay finite, rows of W sum to one, and those away are left as they were, memory and all."""
    seed = data.draw(st.integers(0, 2**16))
    clients = data.draw(st.integers(1, 5))
    aggregator = data.draw(st.sampled_from(["fedavg", "fedctta", "ugsa", "fedavgm", "cfl", "pfedgraph"]))
    late = data.draw(st.sampled_from([Late(), Late("refuse"), Late(decay=1.0)]))
    adapter = data.draw(st.sampled_from(["bn", "tent", "bpa", "rotta"]))
    presence, lateness = data.draw(st.floats(0.05, 0.95)), data.draw(st.floats(0, 0.9))
    rng = np.random.default_rng(seed)
    played = federation(tiny_network, adapter, aggregator, clients, late)
    state, was_there = played.start(), np.zeros(clients, bool)
    generator = torch.Generator().manual_seed(seed)
    for t in range(200):
        there = rng.random(clients) < presence
        delay = np.where(rng.random(clients) < lateness, rng.integers(1, 5, clients), 0)
        if not there.any():
            was_there = there
            continue
        active, joined = torch.from_numpy(there), torch.from_numpy(there & ~was_there)
        x = torch.rand(int(there.sum()), 4, 3, 8, 8, generator=generator)
        before = state
        with torch.no_grad():
            state, outcome = played.play(
                state, t, x, active, None, joined if t and joined.any() else None, torch.from_numpy(delay)
            )
        weights = matrix(outcome.weights)
        torch.testing.assert_close(weights.sum(1), torch.ones(clients))
        assert outcome.logits.isfinite().all()
        away = ~active
        assert all(torch.equal(new[away], before.clients.own[name][away]) for name, new in state.clients.own.items())
        for name, new in state.clients.private.items():  # an absent client's memory is untouched
            assert torch.equal(new[away], before.clients.private[name][away])
        was_there = there
    assert all(tensor.isfinite().all() for tensor in state.clients.own.values())


def test_no_clients_data_are_in_anothers_memory(tiny_network):
    """RoTTA keeps images: those of a client are its own, whatever the others send and receive."""
    played = federation(tiny_network, "rotta", "fedavg", clients=3)
    state, generator = played.start(), torch.Generator().manual_seed(0)
    everybody = torch.ones(3, dtype=torch.bool)
    for t in range(6):
        x = torch.rand(3, 4, 3, 8, 8, generator=generator) * 0.2 + torch.tensor([0.0, 0.3, 0.6]).view(3, 1, 1, 1, 1)
        with torch.no_grad():
            state, _ = played.play(state, t, x, everybody, None, None, torch.tensor([0, t % 2, 0]))
    images = next(t for name, t in state.clients.private.items() if t.dim() == 5)
    for i, (low, high) in enumerate([(0.0, 0.25), (0.25, 0.55), (0.55, 1.0)]):
        kept = images[i][images[i].flatten(1).any(1)]
        assert len(kept)
        assert (kept.mean((1, 2, 3)) > low).all()
        assert (kept.mean((1, 2, 3)) < high).all()


def test_an_interrupted_run_with_letters_on_their_way_continues_to_the_same_numbers(tiny_network, domains, tmp_path):
    stream = build(NIID(clusters=2), domains, clients=4, slots=3, batch=4, seed=0, stragglers=0.6, delay=2)
    whole = simulate(federation(tiny_network, "tent", "fedavg"), stream)
    path = tmp_path / "place"

    def stop(t, tally):
        if t == 2:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        simulate(federation(tiny_network, "tent", "fedavg"), stream, checkpoint=path, save_every=0.0, on_round=stop)
    continued = simulate(federation(tiny_network, "tent", "fedavg"), stream, checkpoint=path)
    assert torch.equal(whole.correct, continued.correct)
    assert torch.equal(whole.entropy, continued.entropy)


def test_absent_clients_cost_nothing(tiny_network, domains):
    """Of ten clients one is there: as many bytes as for it alone."""
    stream = build(Arrivals(stay=1), domains, clients=4, slots=1, batch=4, seed=0)
    one = build(Arrivals(stay=1), domains, clients=1, slots=1, batch=4, seed=0)
    many = simulate(federation(tiny_network, clients=4), stream)
    single = simulate(federation(tiny_network, clients=1), one)
    assert (many.bytes == 4 * single.bytes).all()


@pytest.mark.parametrize(("aggregator", "greeted"), [("ugsa", 3), ("fedavg", 0)])
@pytest.mark.parametrize("interval", [1, 2])
def test_what_newcomers_are_sent_is_counted(aggregator, greeted, interval, tiny_network, domains):
    """Four clients come one after another for two rounds each; the first finds no model to be greeted with."""
    stream = build(Arrivals(stay=2), domains, clients=4, slots=2, batch=4, seed=0)
    played = replace(federation(tiny_network, "bn", aggregator), interval=interval)
    model = sum(tensor.numel() * 4 for tensor in played.start().clients.own.values()) // 4
    tally = simulate(played, stream)
    assert tally.bytes[1] == model * (8 // interval + greeted)


def test_rounds_without_clients_have_no_matrix(tiny_network, domains):
    plan = np.array([[0, 0], [ABSENT, ABSENT], [0, ABSENT]], np.int32)
    stream = replace(build(NIID(clusters=1), domains, clients=2, slots=3, batch=4, seed=0))
    visit, samples = np.zeros_like(plan), stream.samples
    tally = simulate(federation(tiny_network, clients=2), replace(stream, domain=plan, visit=visit, samples=samples))
    assert tally.kept_rounds.tolist() == [0, 2]
    torch.testing.assert_close(tally.matrices.sum(2), torch.ones(2, 2))


@pytest.mark.parametrize("robust", ["none", "median"])
def test_what_is_remembered_as_received_is_what_clients_received(robust, tiny_network):
    """Client 2 is away in round 1, client 3 late in round 0 and there again in round 1, client 0 late in round 2."""
    played = federation(tiny_network, "bn", "fedctta", statistics="received", temperature=0.1)
    played = replace(played, robust=Robust(robust))
    active = torch.tensor([[True] * 4, [True, True, False, True], [True] * 4])
    delay = torch.tensor([[0, 0, 0, 1], [0, 0, 0, 0], [2, 0, 0, 0]])
    state, generator, last = played.start(), torch.Generator().manual_seed(0), {}
    for t in range(3):
        x = torch.rand(int(active[t].sum()), 4, 3, 8, 8, generator=generator)
        with torch.no_grad():
            state, _ = played.play(state, t, x, active[t], None, None, delay[t])
        for name, tensor in state.clients.own.items():
            source = tiny_network.state[name].expand_as(tensor)
            got = choose_rows(active[t] & (delay[t] == 0), tensor, last.get(name, source))
            torch.testing.assert_close(state.memory[f"received.{name}"], got, atol=1e-6, rtol=1e-5)
            last[name] = got


def test_restriction_weights_columns_by_trust_and_rows_by_who_receives():
    w = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    found = restrict(w, torch.tensor([True, False]), torch.tensor([1.0, 0.5]))
    torch.testing.assert_close(found, torch.tensor([[2 / 3, 1 / 3], [0.0, 1.0]]))
