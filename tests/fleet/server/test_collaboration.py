"""The hub gives what the simulator's round gives, whoever is there and however late."""

from __future__ import annotations

import pytest
import torch

from fedctta.adapters import adapters
from fedctta.aggregators import Server, aggregators
from fedctta.aggregators.common.mixing import matrix
from fedctta.core.clients import Client, by_vmap
from fedctta.engine.rounds import Federation
from fedctta.fleet.server.collaboration import Hub, Upload
from fedctta.uploads.late_uploads import Late
from fedctta.uploads.robust import Robust

METHODS = ("fedavg", "fedctta", "fedtsa", "pfedbbn", "fedavgm", "ugsa", "ldawa", "cfl")
SHAPE = (3, 8, 8)


def make_federation(network, name, clients=4, robust="none", **parameters):
    server = Server(network, by_vmap, 3, SHAPE, clients, lambda n: torch.zeros(n, *SHAPE))
    return Federation(adapters.create("bn"), aggregators.create(name, parameters), server, robust=Robust(robust))


def make_hub(federation):
    network = federation.network
    shared = federation.aggregator.shares(network, federation.adapter.init(network).own)
    return Hub(federation.aggregator, federation.server, shared, federation.stages[-1], federation.robust)


def batches(rounds, clients=4):
    scale = torch.linspace(0.3, 2, clients).view(1, clients, 1, 1, 1, 1)
    return torch.rand(rounds, clients, 6, *SHAPE, generator=torch.Generator().manual_seed(1)) * scale


def adapted(federation, clients, x, row):
    """One client of the stack after its batch, and its upload."""
    one = Client({n: t[row] for n, t in clients.own.items()}, {n: t[row] for n, t in clients.private.items()})
    one = federation.adapter.adapt(federation.network, one, x)
    return Upload(one.own, federation.aggregator.signal(federation.network, one, x))


@pytest.mark.parametrize(
    ("name", "robust"),
    [
        *((name, "none") for name in METHODS),
        ("fedavg", "cap"),
        ("fedctta", "clip"),
        ("fedavg", "median"),
        ("fedtsa port", "none"),
        ("fedtsa port", "clip"),
    ],
)
def test_as_the_simulator_with_absences(tiny_network, name, robust):
    name, _, variant = name.partition(" ")
    parameters = {"epochs": 3, "variant": variant or "paper"} if name == "fedtsa" else {}
    federation = make_federation(tiny_network, name, robust=robust, **parameters)
    hub = make_hub(federation)
    state, standing = federation.start(), hub.start()
    there = ([0, 1, 2, 3], [0, 2, 3], [0, 1, 2, 3], [1, 3])
    for t, (x, who) in enumerate(zip(batches(4), there, strict=True)):
        active = torch.tensor([row in who for row in range(4)])
        uploads = {row: adapted(federation, state.clients, x[row], row) for row in who}
        with torch.no_grad():
            state, outcome = federation.play(state, t, x[active], active, None)
        standing, weights, receivers = hub.close(standing, uploads)
        assert list(receivers) == who
        torch.testing.assert_close(weights, matrix(outcome.weights), atol=1e-5, rtol=1e-5)
        for name_, rows in standing.rows.items():
            torch.testing.assert_close(rows, state.clients.own[name_], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["fedavg", "fedctta", "ugsa"])
def test_as_the_simulator_with_a_late_upload(tiny_network, name):
    federation = make_federation(tiny_network, name)
    hub = make_hub(federation)
    state, standing = federation.start(), hub.start()
    everyone, x = torch.ones(4, dtype=torch.bool), batches(2)
    delays = torch.tensor(
        [[0, 1, 0, 0], [0, 0, 0, 2]]
    )  # client 1 of round 0 comes in round 1, together with newer news
    first = {row: adapted(federation, state.clients, x[0][row], row) for row in range(4)}
    with torch.no_grad():
        state, one = federation.play(state, 0, x[0], everyone, None, None, delays[0])
    standing, weights, _ = hub.close(standing, {row: first[row] for row in (0, 2, 3)})
    torch.testing.assert_close(weights, matrix(one.weights), atol=1e-5, rtol=1e-5)
    absent = torch.tensor([True, False, True, True])
    second = {row: adapted(federation, state.clients, x[1][row], row) for row in (0, 2, 3)}
    with torch.no_grad():
        state, two = federation.play(state, 1, x[1][absent], absent, None, None, torch.tensor([0, 0, 0, 0]))
    late = {**second, 1: Upload(first[1].own, first[1].signals, age=1)}
    _, weights, receivers = hub.close(standing, late, receivers=[0, 2, 3])
    assert receivers == (0, 2, 3)
    torch.testing.assert_close(weights, matrix(two.weights), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["fedavg", "fedctta", "pfedbbn", "ugsa"])
def test_empty_rows_change_nothing(tiny_network, name):
    """A server with room for more devices computes the same for those it has."""
    small, large = (make_federation(tiny_network, name, clients) for clients in (4, 9))
    uploads = {row: adapted(small, small.start().clients, batches(1)[0][row], row) for row in range(4)}
    tight, roomy = (make_hub(f).close(make_hub(f).start(), uploads) for f in (small, large))
    torch.testing.assert_close(roomy.weights[:4, :4], tight.weights)
    torch.testing.assert_close(roomy.weights[4:], torch.eye(9)[4:])
    for name_, rows in tight.standing.rows.items():
        torch.testing.assert_close(roomy.standing.rows[name_][:4], rows)


def test_an_old_upload_counts_less_and_a_refused_one_nothing(tiny_network):
    federation = make_federation(tiny_network, "fedavg")
    uploads = {row: adapted(federation, federation.start().clients, batches(1)[0][row], row) for row in range(2)}
    uploads[1] = Upload(uploads[1].own, age=1)
    hub = make_hub(federation)
    weights = hub.close(hub.start(), uploads).weights
    assert weights[0].tolist() == pytest.approx([2 / 3, 1 / 3, 0, 0])
    strict = Hub(hub.aggregator, hub.server, hub.shared, Late(stale="refuse"))
    closed = strict.close(strict.start(), uploads)
    assert closed.receivers == (0,)
    assert closed.weights[0].tolist() == [1, 0, 0, 0]


def test_who_joins_is_greeted_by_a_server_with_a_model_of_its_own(tiny_network):
    for name, greets in (("ugsa", True), ("fedavgm", True), ("fedavg", False)):
        federation = make_federation(tiny_network, name)
        hub = make_hub(federation)
        uploads = {0: adapted(federation, federation.start().clients, batches(1)[0][3], 0)}
        standing = hub.close(hub.start(), uploads).standing
        greeted = hub.welcome(standing, [2])
        assert (greeted is not None) == greets
        if greeted is not None:
            rows = greeted.rows[next(iter(greeted.rows))]
            assert torch.equal(rows[2], rows[0])
            assert not torch.equal(rows[1], rows[0])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["kin", "fedavg", "fedavgm"])
def test_what_is_no_number_stays_out_of_the_standing(tiny_network, name, value):
    server = Server(tiny_network, by_vmap, 3, SHAPE, 4, lambda n: torch.zeros(n, *SHAPE))
    federation = Federation(adapters.create("tent"), aggregators.create(name), server, robust=Robust("clip"))
    hub, clients = make_hub(federation), federation.start().clients
    uploads = {row: adapted(federation, clients, batches(1)[0][row], row) for row in range(4)}
    uploads[1] = Upload({n: torch.full_like(t, value) for n, t in uploads[1].own.items()}, uploads[1].signals)
    closed = hub.close(hub.start(), uploads)
    assert closed.receivers == (0, 2, 3)
    for part in closed.standing:
        assert all(tensor.isfinite().all() for tensor in part.values())


def uploads_of(federation, rows):
    start, x = federation.start().clients, batches(1)[0]
    return {row: adapted(federation, start, x[row], row) for row in rows}


def test_models_are_probed_once_as_they_arrive(tiny_network, monkeypatch):
    federation = make_federation(tiny_network, "fedctta")
    hub, probed = make_hub(federation), []
    ask = type(federation.aggregator)._ask

    def count(self, server, clients, answer):
        probed.append(len(next(iter(clients.own.values()))))
        return ask(self, server, clients, answer)

    monkeypatch.setattr(type(federation.aggregator), "_ask", count)
    standing, uploads = hub.start(), uploads_of(federation, [0, 2, 3])
    first = hub.prepare(standing, {row: uploads[row] for row in (3, 0)})
    closed = hub.close(standing, hub.prepare(standing, {**first, 2: uploads[2]}))
    assert probed == [2, 1]  # nobody twice, and no empty row
    at_once = hub.close(standing, uploads)
    assert probed == [2, 1, 3]
    torch.testing.assert_close(closed.weights, at_once.weights, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "robust", "parameters"),
    [
        ("fedavg", "none", {}),
        ("fedctta", "clip", {}),  # which changes models before they are probed
        ("fedctta", "none", {"variant": "code"}),  # which probes those received before, with new noise
        ("fedctta", "none", {"probe": "batch"}),
    ],
)
def test_what_depends_on_more_than_one_upload_waits_for_all(tiny_network, name, robust, parameters):
    federation = make_federation(tiny_network, name, robust=robust, **parameters)
    hub = make_hub(federation)
    prepared = hub.prepare(hub.start(), uploads_of(federation, [1, 2]))
    assert [upload.prepared for upload in prepared.values()] == [{}, {}]
