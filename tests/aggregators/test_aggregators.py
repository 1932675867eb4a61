"""What every aggregator must satisfy."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedctta.adapters import adapters
from fedctta.aggregators import Server, Uploads, aggregators
from fedctta.aggregators.common.mixing import matrix, mix, overall, restrict
from fedctta.core.clients import Client, InChunks, by_loop, stack

# parameters with which a method is quick, and the same whatever the order of clients
SMALL = {"fedtsa": {"ablation": "no-aug", "epochs": 10}}  # with masks, equivariant only if the noise moves along
OTHER_FORMS = [
    ("fedctta", {"ema": 0.0}),
    ("fedctta", {"metric": "kl"}),
    ("fedctta", {"metric": "ce"}),
    ("fedctta", {"metric": "cosine", "squash": True}),
    ("fedctta", {"compare": "features"}),
    ("fedctta", {"compare": "probabilities", "metric": "kl"}),
    ("fedctta", {"probe": "images"}),
    ("fedctta", {"probe": "batch"}),
    ("fedctta", {"redraw": "round"}),
    ("fedctta", {"variant": "code", "redraw": "round"}),  # noise of one's own must move along: test_fedctta
    ("fedctta", {"statistics": "received"}),
    ("fedctta", {"neighbours": 9}),  # with fewer than there are clients: test_neighbours
    ("fedavgm", {"variant": "code", "restart": 2}),
    ("fedamp", {"variant": "code"}),
    ("pfedgraph", {"snap": False, "lam": 0.1}),
    ("pfedgraph", {"variant": "code"}),
    ("pfedbbn", {"temperature": 0.1}),
    ("ldawa", {"variant": "code"}),
    ("ldawa", {"variant": "code", "restart": 2}),
    ("fedtsa", {"ablation": "s-sim"}),
    ("fedtsa", {"ablation": "ts-sim", "window": 2}),
    ("fedtsa", {"ablation": "no-time", "lam": 0.0, "epochs": 5}),
    ("fedtsa", {"variant": "code", "lam": 0.0, "epochs": 5}),
    ("fedtsa", {"variant": "port", "lam": 0.0, "window": 3, "epochs": 5}),
    ("cfl", {"eps1": 0.7, "eps2": 0.7}),
    ("cfl", {"variant": "code"}),
    ("ugsa", {"uncertainty": "energy", "gate": "softmax"}),
    ("kin", {"clip": 2.0}),
]
FORMS = [(name, SMALL.get(name, {})) for name in aggregators.classes()] + OTHER_FORMS
by_chunks = InChunks(2)  # as in a run of many clients: some at a time, and a rest
ids = ["-".join([name, *map(str, parameters.values())]) for name, parameters in FORMS]


@pytest.fixture(params=FORMS, ids=ids)
def aggregator(request):
    return aggregators.create(*request.param)


@pytest.fixture(params=["statistics", "everything"])
def source(request, tiny_network):
    """What clients own: BatchNorm statistics (adapter bn), or parameters too (adapter grad)."""
    return tiny_network.statistics if request.param == "statistics" else tiny_network.state


def make_server(network, clients, lift=by_chunks):
    images = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    return Server(network, lift, seed=0, shape=(3, 8, 8), clients=clients, images=lambda count: images[:count])


def make_uploads(network, aggregator, source, clients, seed=0):
    """Clients with random tensors around the source's, signals from random batches, alternating domains."""
    generator = torch.Generator().manual_seed(seed)
    own = {
        name: tensor * (0.5 + torch.rand(clients, *tensor.shape, generator=generator))
        for name, tensor in source.items()
    }
    batches = torch.rand(clients, 4, 3, 8, 8, generator=generator)
    everybody = range(clients)
    parts = [aggregator.signal(network, Client({n: t[i] for n, t in own.items()}), batches[i]) for i in everybody]
    signals = {name: torch.stack([part[name] for part in parts]) for name in parts[0]}
    return Uploads(own, signals, torch.ones(clients, dtype=torch.bool), torch.arange(clients) % 2)


def permuted(uploads, order):
    def rows(tensors):
        return {name: tensor[order] for name, tensor in tensors.items()}

    trust = None if uploads.trust is None else uploads.trust[order]
    return Uploads(rows(uploads.own), rows(uploads.signals), uploads.active[order], uploads.domain[order], trust)


def matrices(weights):
    """Every W there is: one, or one for each tensor."""
    return [matrix(w) for w in weights.values()] if isinstance(weights, dict) else [matrix(weights)]


def play(aggregator, server, uploads, memory, receive=None):
    """Aggregate as the engine does; return W, the models sent and the memory."""
    receive = uploads.active if receive is None else receive
    shared = aggregator.shares(server.network, uploads.own)
    uploads = uploads._replace(own=shared)
    weights, memory = aggregator.collaborate(server, uploads, memory)
    given = aggregator.contribute(shared, uploads.active, memory)
    mixed = mix(restrict(weights, receive, uploads.trust), given)
    sent, memory = aggregator.step(server, uploads, mixed, receive, memory)
    return weights, sent, memory


def trusted(uploads, trust):
    """The uploads as the engine shows them where some are late or missing."""
    trust = torch.tensor(trust)
    return uploads._replace(active=trust > 0, trust=trust)


@pytest.mark.parametrize("clients", [1, 2, 5])
def test_rows_sum_to_one_and_are_not_negative(aggregator, source, clients, tiny_network):
    server = make_server(tiny_network, clients)
    memory = aggregator.init(server)
    for seed in range(3):
        uploads = make_uploads(tiny_network, aggregator, source, clients, seed)
        weights, _, memory = play(aggregator, server, uploads, memory)
        for w in (*matrices(weights), overall(weights, uploads.own)):
            assert w.shape == (clients, clients)
            assert (w >= 0).all()
            torch.testing.assert_close(w.sum(1), torch.ones(clients), atol=1e-6, rtol=0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10)
@given(st.lists(st.booleans(), min_size=1, max_size=6).filter(any), st.integers(0, 100))
def test_two_rounds_with_whoever_comes(aggregator, source, tiny_network, active, seed):
    present, server = torch.tensor(active), make_server(tiny_network, len(active))
    memory = aggregator.init(server)
    with torch.no_grad():
        for round_ in range(2):
            uploads = make_uploads(tiny_network, aggregator, source, len(active), seed + round_)
            uploads = uploads._replace(active=present)
            weights, sent, memory = play(aggregator, server, uploads, memory)
            for w in matrices(weights):
                torch.testing.assert_close(w[present].sum(1), torch.ones(sum(active)), atol=1e-6, rtol=0)
            for name, tensor in sent.items():
                assert tensor.isfinite().all()
                assert torch.equal(tensor[~present], uploads.own[name][~present])


def test_permuting_clients_permutes_the_matrix(aggregator, source, tiny_network):
    order, server = torch.tensor([3, 0, 4, 1, 2]), make_server(tiny_network, 5)
    memory, memory_permuted = aggregator.init(server), aggregator.init(server)
    for seed in range(2):
        uploads = make_uploads(tiny_network, aggregator, source, 5, seed)
        weights, sent, memory = play(aggregator, server, uploads, memory)
        again, sent_again, memory_permuted = play(aggregator, server, permuted(uploads, order), memory_permuted)
        for w, v in zip(matrices(weights), matrices(again), strict=True):
            torch.testing.assert_close(v, w[order][:, order], atol=1e-5, rtol=1e-4)
        for name, tensor in sent.items():
            torch.testing.assert_close(sent_again[name], tensor[order], atol=1e-5, rtol=1e-4)


def test_the_order_of_clients_does_not_matter_where_uploads_are_late(aggregator, source, tiny_network):
    """Late uploads beside fresh ones, late ones alone with nobody to receive, and what all of it comes to."""
    order, server = torch.tensor([3, 0, 4, 1, 2]), make_server(tiny_network, 5)
    memory, memory_permuted = aggregator.init(server), aggregator.init(server)
    rounds = [[1, 1, 1, 1, 1], [0.5, 1, 0, 1, 0.25], [0.5, 0, 0.25, 0, 0.5], [1, 0.5, 1, 1, 1]]
    for seed, trust in enumerate(rounds):
        uploads = trusted(make_uploads(tiny_network, aggregator, source, 5, seed), [float(t) for t in trust])
        receive = uploads.trust == 1
        _, sent, memory = play(aggregator, server, uploads, memory, receive)
        again = permuted(uploads, order)
        _, sent_again, memory_permuted = play(aggregator, server, again, memory_permuted, receive[order])
        for name, tensor in sent.items():
            torch.testing.assert_close(sent_again[name], tensor[order], atol=1e-5, rtol=1e-4)
        kept, kept_again = aggregator.keeps(memory), aggregator.keeps(memory_permuted)
        torch.testing.assert_close(kept, kept_again, atol=1e-5, rtol=1e-4)


def test_where_nothing_comes_the_servers_model_stays(aggregator, source, tiny_network):
    """Nothing plausible, say: rows hold what was refused, and count nothing."""
    server = make_server(tiny_network, 4)
    uploads = make_uploads(tiny_network, aggregator, source, 4)
    _, _, before = play(aggregator, server, uploads, aggregator.init(server))
    nothing = trusted(make_uploads(tiny_network, aggregator, source, 4, seed=1), [0.0] * 4)
    _, sent, after = play(aggregator, server, nothing, before)
    for name, tensor in sent.items():
        assert torch.equal(tensor, nothing.own[name])
    assert after.keys() == before.keys()
    for name in after:
        assert after[name].isfinite().all()
        if name.startswith(("global.", "momentum.", "received.")):
            assert torch.equal(after[name], before[name]), name


def test_an_absent_client_changes_nothing_for_the_others(aggregator, source, tiny_network):
    server = make_server(tiny_network, 4)
    present = torch.tensor([True, False, True, True])
    memory, memory_other = aggregator.init(server), aggregator.init(server)
    for seed in range(2):
        uploads = make_uploads(tiny_network, aggregator, source, 4, seed)._replace(active=present)
        stranger = {name: tensor.clone() for name, tensor in uploads.own.items()}
        for tensor in stranger.values():
            tensor[1] += 1.0
        weights, sent, memory = play(aggregator, server, uploads, memory)
        other, sent_other, memory_other = play(aggregator, server, uploads._replace(own=stranger), memory_other)
        weights, other = restrict(weights, present), restrict(other, present)
        for w, v in zip(matrices(weights), matrices(other), strict=True):
            torch.testing.assert_close(w, v)
            torch.testing.assert_close(w.sum(1), torch.ones(4))
            assert w[1].tolist() == [0, 1, 0, 0]
            assert (w[present][:, 1] == 0).all()
        for name, tensor in sent.items():
            torch.testing.assert_close(tensor[present], sent_other[name][present])
            assert torch.equal(tensor[1], uploads.own[name][1])


def test_memory_does_not_grow(aggregator, source, tiny_network):
    server = make_server(tiny_network, 3)
    memory = aggregator.init(server)
    sizes = []
    for seed in range(4):
        _, _, memory = play(aggregator, server, make_uploads(tiny_network, aggregator, source, 3, seed), memory)
        sizes.append(sum(t.numel() for t in memory.values()))
    assert len(set(sizes)) == 1


def test_lifting_does_not_change_the_matrix(aggregator, source, tiny_network):
    uploads = make_uploads(tiny_network, aggregator, source, 3)
    by = {}
    for lift in (by_chunks, by_loop):
        server = make_server(tiny_network, 3, lift)
        by[lift], _ = aggregator.collaborate(server, uploads, aggregator.init(server))
    torch.testing.assert_close(by[by_chunks], by[by_loop], atol=1e-5, rtol=1e-4)


def test_a_signal_can_be_lifted(aggregator, source, tiny_network):
    clients, x = Client(stack(source, 3)), torch.rand(3, 4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    by = [lift(partial(aggregator.signal, tiny_network))(clients, x) for lift in (by_chunks, by_loop)]
    torch.testing.assert_close(by[0], by[1])


def test_clients_that_own_nothing_are_no_failure(aggregator, tiny_network):
    server = make_server(tiny_network, 2)
    weights, sent, _ = play(aggregator, server, make_uploads(tiny_network, aggregator, {}, 2), aggregator.init(server))
    assert overall(weights, {}).shape == (2, 2)
    assert sent == {}


def test_labels_change_no_prediction(aggregator, relabelled):
    relabelled(adapters.create("grad"), aggregator)


def test_equal_clients_are_not_told_apart(aggregator, source, tiny_network):
    if not aggregator.communicates:
        pytest.skip("nobody collaborates")
    server = make_server(tiny_network, 4)
    x = torch.rand(4, 3, 8, 8)
    signals = stack(aggregator.signal(tiny_network, Client(source), x), 4)
    uploads = Uploads(stack(source, 4), signals, torch.ones(4, dtype=torch.bool), torch.zeros(4))
    weights, _, memory = play(aggregator, server, uploads, aggregator.init(server))
    again, _, _ = play(aggregator, server, uploads, memory)
    own = torch.eye(4, dtype=torch.bool)
    if aggregator.name == "cfl" and aggregator.variant == "code":  # statistics stay at home there
        kept = [w for w in (*matrices(weights), *matrices(again)) if not torch.equal(w, own.float())]
        return torch.testing.assert_close(kept, [torch.full((4, 4), 0.25)] * len(kept))
    for w in (*matrices(weights), *matrices(again)):
        for alike in (w[own], w[~own]):
            torch.testing.assert_close(alike, alike[:1].expand_as(alike), atol=1e-4, rtol=0)
        on_oneself = (aggregator.name == "fedamp" and aggregator.variant == "code") or aggregator.name in (
            "kin",
            "cola",
            "recall",
        )
        if not on_oneself:  # there the weight on oneself is fixed, for kin on what is learnt; books are no models
            torch.testing.assert_close(w, torch.full((4, 4), 0.25), atol=1e-4, rtol=0)
