"""Whole runs whose clients store kernels and matrices in bfloat16: half the bytes, and nearly the same numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedctta.core.clients import InChunks, by_loop
from fedctta.core.network import Network
from fedctta.core.storage import KEY, choose_storage, widen
from fedctta.engine import simulation
from fedctta.engine.gpu_capacity import are_too_many
from fedctta.engine.rounds import flatten
from fedctta.engine.simulation import simulate
from fedctta.streams import build
from fedctta.streams.clusters import NIID

ALL = ["local", "fedavg", "fedbn", "fedavgm", "fedamp", "cfl", "ldawa", "pfedgraph", "fedctta", "kin", "ugsa", "oracle"]
METHODS = ["cotta", "fedicon", "grad", "shot", "t3a"]


def store(federation):
    """Return the federation with clients in bfloat16."""
    storage = choose_storage(federation.network, federation.adapter.init(federation.network))
    lift = storage.lift(federation.server.lift)
    return replace(federation, storage=storage, server=replace(federation.server, lift=lift))


def size_of(clients):
    return sum(tensor.nbytes for tensor in clients.own.values() if tensor.dim() > 2)


@pytest.fixture
def play(domains, witness):
    """Play three clients; return the tally, and the state after the last of some rounds."""
    stream = build(NIID(clusters=2), domains, clients=3, slots=3, batch=4, seed=0)

    def run(federation, rounds=9, **how):
        last = witness()
        shown = replace(stream, domain=stream.domain[:rounds], visit=stream.visit[:rounds])
        tally = simulate(federation, shown, retention=last, predictions=True, **how)
        return tally, last.state

    return run


@pytest.mark.parametrize("name", ALL)
def test_one_round_differs_by_rounding_only(name, federation, tiny_network, play):
    wide = federation(tiny_network, "grad", name, clients=3, lift=InChunks(2))
    expected, found = play(wide, 1)[1].clients, play(store(wide), 1)[1].clients
    assert 2 * size_of(found) == size_of(expected)
    for part, tensor in widen(found.own).items():
        rough = {"rtol": 2**-6, "atol": 1e-3} if tensor.dim() > 2 else {"rtol": 0.05, "atol": 0.02}
        torch.testing.assert_close(tensor, expected.own[part], **rough, msg=part)


@pytest.mark.parametrize("name", ALL)
def test_loops_and_chunks_and_streamed_rows_give_the_same(name, federation, tiny_network, play, monkeypatch):
    """But for sums in another order, of which one in a thousand is then rounded to another neighbour."""
    liftings = (InChunks(2), by_loop)
    chunks, loop = (store(federation(tiny_network, "grad", name, clients=3, lift=how)) for how in liftings)
    expected, looped = play(chunks), play(loop)
    monkeypatch.setattr(simulation, "are_too_many", lambda clients, memory: True)
    for tally, state in (looped, play(chunks)):
        assert (tally.classes == expected[0].classes).float().mean() > 0.98
        for part, tensor in flatten(state).items():
            other = flatten(expected[1])[part]
            assert tensor.dtype == other.dtype, part
            torch.testing.assert_close(tensor.float(), other.float(), rtol=2**-5, atol=2e-3, msg=part)


@pytest.mark.parametrize("name", METHODS)
def test_methods_whose_clients_own_weights_can_store_them_so(name, federation, tiny_network, play):
    one = store(federation(tiny_network, name, "fedavg", clients=3, lift=InChunks(2)))
    before, (tally, after) = one.start().clients, play(one, 2)
    assert bool(tally.finite)
    assert all(after.clients.own[part].dtype == tensor.dtype for part, tensor in before.own.items())


def test_who_receives_the_same_model_stores_the_same(federation, tiny_network, play):
    own = play(store(federation(tiny_network, "grad", "fedavg", clients=3, lift=InChunks(2))))[1].clients.own
    for name, tensor in own.items():
        assert torch.equal(tensor, tensor[:1].expand_as(tensor)), name


@pytest.mark.parametrize("streamed", [False, True])
def test_a_resumed_run_has_the_same_bits(streamed, federation, tiny_network, play, tmp_path, monkeypatch):
    monkeypatch.setattr(simulation, "are_too_many", lambda clients, memory: streamed)
    one = store(federation(tiny_network, "grad", "fedctta", clients=3, lift=InChunks(2)))
    expected = flatten(play(one)[1])

    class Stop(Exception):
        pass

    def stop(t, tally):
        if t == 5:
            raise Stop

    path = tmp_path / "run.checkpoint"
    with pytest.raises(Stop):
        play(one, checkpoint=path, save_every=0.0, on_round=stop)
    found = flatten(play(one, checkpoint=path)[1])
    assert found.keys() == expected.keys()
    assert f"private.{KEY}" in found
    for name, tensor in expected.items():
        assert tensor.dtype == found[name].dtype
        assert torch.equal(found[name], tensor), name


def test_real_bytes_decide_whether_clients_are_too_many(federation, tiny_network):
    wide = federation(tiny_network, "grad", clients=3, lift=InChunks(2))
    before, after = wide.start().clients, store(wide).start().clients
    limits = [min(m for m in range(0, 400_000, 50) if not are_too_many(clients, m)) for clients in (before, after)]
    assert limits[1] < 0.7 * limits[0]


def test_what_is_sent_is_counted_as_stored(federation, tiny_network, play):
    wide = federation(tiny_network, "grad", "fedavg", clients=3, lift=InChunks(2))
    widely, narrowly = (play(one, 1)[0].bytes for one in (wide, store(wide)))
    kernels = size_of(wide.start().clients)
    assert (widely - narrowly).tolist() == [kernels // 2] * 2


@pytest.mark.gpu
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", ["fedavg", "fedctta", "fedavgm"])
def test_graphs_give_the_same(name, streamed, federation, tiny_module, play, monkeypatch):
    monkeypatch.setattr(simulation, "are_too_many", lambda clients, memory: streamed)
    network = Network(tiny_module, torch.device("cuda"))
    plain = store(federation(network, "grad", name, clients=3, lift=InChunks(2)))
    expected, (tally, state) = play(plain)[1], play(replace(plain, graphs="auto"))
    assert streamed or tally.replayed > 0
    for part, tensor in flatten(state).items():
        torch.testing.assert_close(tensor.float(), flatten(expected)[part].float(), rtol=2**-5, atol=2e-3, msg=part)
