"""Replayed rounds are the rounds as ever."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from fedctta.adapters import adapters
from fedctta.aggregators import Aggregator, Server, aggregators
from fedctta.aggregators.fedtsa import FedTSA
from fedctta.core.clients import Client, choose_lift
from fedctta.core.network import Network
from fedctta.engine.captured_lift import CapturedLift
from fedctta.engine.cuda_graphs import RoundGraphs, alike, near, write_over
from fedctta.engine.rounds import Federation, State
from fedctta.engine.simulation import simulate
from fedctta.errors import UserError
from fedctta.streams import build
from fedctta.streams.arrivals import Churn
from fedctta.streams.clusters import NIID

ON_THE_HOST = {"cfl"}
PARAMETERS = {"rotta": {"side": 8}}


def state(**tensors: list[float]) -> State:
    return State(Client({name: torch.tensor(values) for name, values in tensors.items()}), {}, {})


def test_a_state_is_written_over_another():
    held = state(a=[1.0, 2.0], b=[3.0])
    places = {name: tensor.data_ptr() for name, tensor in held.clients.own.items()}
    write_over(held, state(a=[5.0, 6.0], b=[7.0]))
    assert held.clients.own["a"].tolist() == [5, 6]
    assert held.clients.own["b"].tolist() == [7]
    assert {name: tensor.data_ptr() for name, tensor in held.clients.own.items()} == places


def test_a_state_that_exchanges_the_tensors_held_is_written_right():
    held = state(a=[1.0], b=[2.0], c=[3.0])
    own = held.clients.own
    write_over(held, State(Client({"a": own["b"], "b": own["a"], "c": own["c"]}), {}, {}))
    assert [own[name].item() for name in "abc"] == [2, 1, 3]


def test_states_are_alike_in_form_and_near_in_value():
    one = state(a=[1.0, torch.nan])
    assert alike(one, state(a=[2.0, 3.0]))
    assert not alike(one, state(a=[2.0]))
    assert not alike(one, state(b=[1.0, 2.0]))
    assert near(one, state(a=[1.0001, torch.nan]))
    assert not near(one, state(a=[1.01, torch.nan]))


def test_a_round_in_which_all_compute_a_review_changes_those_who_are_due(tiny_network, federation, monkeypatch):
    """It is what replayed rounds are compared with."""
    one = federation(tiny_network, "recall", "local", clients=4)
    graphs = object.__new__(RoundGraphs)  # no GPU
    graphs._federation, graphs._everybody = one, torch.ones(4, dtype=torch.bool)

    def review(self, network, client, x):
        return client._replace(private={**client.private, "time": client.private["time"] + 1000})

    monkeypatch.setattr(type(one.adapter), "review", review)
    state = one.start()
    for t, due in enumerate([[True] * 4, [True, False, False, True], [False] * 4]):
        monkeypatch.setattr(Federation, "find_due", lambda self, clients, due=due: torch.tensor(due))
        x = torch.rand(4, 5, 3, 8, 8, generator=torch.Generator().manual_seed(t))
        as_ever, played = one.play(state, t, x, graphs._everybody, None)
        state, outcome = graphs._play(state, t, x, None)
        torch.testing.assert_close(outcome.logits, played.logits)
        assert near(state, as_ever)
    assert (state.clients.private["time"] // 1000).tolist() == [2, 1, 1, 2]


@dataclass(frozen=True)
class Counting(Aggregator):
    """Keeps a number on the host, which a graph would freeze."""

    name: ClassVar[str] = "counting"

    def init(self, server):
        return {"round": torch.zeros(())}

    def collaborate(self, server, uploads, memory):
        n = len(uploads.active)
        own = 0.5 + 0.1 * (float(memory["round"]) % 3)
        weights = torch.eye(n) * own + (1 - torch.eye(n)) * (1 - own) / (n - 1)
        return weights.to(uploads.active.device), {"round": memory["round"] + 1}


@dataclass(frozen=True)
class Forgetful(Aggregator):
    """Changes by a number that torch does not see."""

    name: ClassVar[str] = "forgetful"
    calls: ClassVar[list[int]] = []

    def collaborate(self, server, uploads, memory):
        self.calls.append(1)
        own = 1.0 if len(self.calls) % 2 else 0.0
        n = len(uploads.active)
        oneself = torch.eye(n, device=uploads.active.device)
        return own * oneself + (1 - own) * oneself.roll(1, 0), memory


def federation(module, adapter, aggregator, graphs, interval=1, predict="after"):
    network, method = Network(module, "cuda"), adapters.create(adapter, PARAMETERS.get(adapter))
    server_method = aggregator if isinstance(aggregator, Aggregator) else aggregators.create(aggregator)
    lifter = choose_lift("vmap", network, method.init(network), batch=4)
    public = torch.rand(64, 3, 8, 8, generator=torch.Generator().manual_seed(0)).cuda()
    server = Server(network, lifter, 0, (3, 8, 8), 4, lambda count: public[:count])
    return Federation(method, server_method, server, interval, graphs=graphs, predict=predict)


def both(module, stream, adapter="bn", aggregator="fedctta", interval=1, graphs="auto", predict="after"):
    """Return the tallies of a run as ever and of one by graphs."""
    from fedctta.machine import arithmetic

    with arithmetic():
        as_ever = simulate(federation(module, adapter, aggregator, "never", interval, predict), stream)
        replayed = simulate(federation(module, adapter, aggregator, graphs, interval, predict), stream)
    return as_ever, replayed


def assert_same(as_ever, replayed):
    assert (as_ever.correct - replayed.correct).abs().sum() <= 1
    for name in ("matrices", "entropy", "same_domain"):
        torch.testing.assert_close(getattr(as_ever, name), getattr(replayed, name), atol=2e-3, rtol=2e-3)
    assert as_ever.bytes.tolist() == replayed.bytes.tolist()
    assert int(as_ever.predicted.sum()) == int(replayed.predicted.sum())


@pytest.fixture
def stream(make_domains):
    return build(NIID(clusters=2), make_domains(images=200), clients=4, slots=12, batch=4, seed=0)


@pytest.mark.gpu
@pytest.mark.parametrize("aggregator", sorted(aggregators.classes()))
def test_every_server_method_is_replayed_alike(aggregator, tiny_module, stream):
    as_ever, replayed = both(tiny_module, stream, "bn", aggregator)
    assert_same(as_ever, replayed)
    assert replayed.replayed == (0 if aggregator in ON_THE_HOST else len(stream) - 2)
    assert as_ever.replayed == 0


@pytest.mark.gpu
def test_a_server_that_mixes_what_it_remembers_is_replayed_alike(tiny_module, stream):
    as_ever, replayed = both(tiny_module, stream, "bn", FedTSA("port", window=5, epochs=5))
    assert_same(as_ever, replayed)
    assert replayed.replayed == len(stream) - 2


@pytest.mark.gpu
@pytest.mark.parametrize("adapter", sorted(set(adapters.classes()) - {"atp", "fedthe", "fedicon"}))  # these need files
def test_every_client_method_is_replayed_alike(adapter, tiny_module, stream):
    as_ever, replayed = both(tiny_module, stream, adapter)
    assert_same(as_ever, replayed)
    assert replayed.replayed == len(stream) - 2


@pytest.mark.gpu
def test_a_memory_that_appears_with_the_first_exchange_is_replayed_alike(tiny_module, stream):
    """Rounds are captured before it, and again after it."""
    as_ever, replayed = both(tiny_module, stream, "cola", "cola", interval=9)
    assert_same(as_ever, replayed)
    assert 0 < replayed.replayed < len(stream) - 2


@pytest.mark.gpu
@pytest.mark.parametrize("adapter", ["bn", "tent", "cotta", "rotta"])
def test_predictions_before_the_update_are_replayed_alike(adapter, tiny_module, stream):
    as_ever, replayed = both(tiny_module, stream, adapter, predict="before")
    assert_same(as_ever, replayed)
    assert replayed.replayed == len(stream) - 2


@pytest.mark.gpu
def test_rounds_with_and_without_the_server_are_replayed(tiny_module, stream):
    as_ever, replayed = both(tiny_module, stream, "grad", interval=3)
    assert_same(as_ever, replayed)
    assert replayed.replayed == len(stream) - 2 - 2


@pytest.mark.gpu
@pytest.mark.parametrize(("adapter", "aggregator"), [("recall", "recall"), ("recall", "local"), ("bn", "cfl")])
def test_rounds_without_the_server_are_replayed_where_the_server_decides_on_the_host(
    adapter, aggregator, tiny_module, stream
):
    as_ever, replayed = both(tiny_module, stream, adapter, aggregator, interval=3)
    assert_same(as_ever, replayed)
    served = 0 if aggregator == "local" else len(stream) // 3
    assert replayed.replayed == len(stream) - served - 2


@pytest.mark.gpu
def test_rounds_in_which_clients_are_missing_are_played_as_ever(tiny_module, make_domains):
    stream = build(Churn(), make_domains(images=200), clients=4, slots=12, batch=4, seed=0)
    as_ever, replayed = both(tiny_module, stream)
    assert_same(as_ever, replayed)
    assert replayed.replayed < len(stream)


@pytest.mark.gpu
@pytest.mark.parametrize(("adapter", "aggregator"), [("recall", "recall"), ("tent", "cfl")])
def test_rounds_in_which_the_host_decides_are_replayed_in_parts(adapter, aggregator, tiny_module, stream, monkeypatch):
    captured, capture = [], CapturedLift._capture

    def spy(self, lifted, leaves, taken):
        captured.append(capture(self, lifted, leaves, taken))
        return captured[-1]

    monkeypatch.setattr(CapturedLift, "_capture", spy)
    as_ever, replayed = both(tiny_module, stream, adapter, aggregator)
    assert_same(as_ever, replayed)
    assert replayed.replayed == 0
    assert any(not isinstance(found, str) for found in captured)  # a string says why it was not possible


@pytest.mark.gpu
def test_few_kept_matrices_are_kept_in_their_rounds(tiny_module, stream, monkeypatch):
    monkeypatch.setattr("fedctta.engine.tally.KEPT_MATRIX_BYTES", 4 * 4 * 4 * 3)
    as_ever, replayed = both(tiny_module, stream)
    assert_same(as_ever, replayed)
    assert len(replayed.kept_rounds) == 3
    assert replayed.replayed == len(stream) - 2


@pytest.mark.gpu
def test_numbers_on_the_host_are_not_frozen(tiny_module, stream):
    as_ever, replayed = both(tiny_module, stream, aggregator=Counting())
    assert_same(as_ever, replayed)
    assert replayed.replayed == 0
    with pytest.raises(UserError, match="lift=graph is not possible here, aggregator counting keeps numbers"):
        both(tiny_module, stream, aggregator=Counting(), graphs="always")


@pytest.mark.gpu
def test_a_replay_that_differs_is_noticed(tiny_module, stream):
    Forgetful.calls.clear()
    federated = federation(tiny_module, "bn", Forgetful(), "auto")
    assert simulate(federated, stream).replayed < 2
    with pytest.raises(UserError, match="differ"):
        simulate(replace(federated, graphs="always"), stream)


@pytest.mark.gpu
def test_a_resumed_run_goes_on_to_the_same_numbers(tiny_module, stream, tmp_path):
    federated, place = federation(tiny_module, "tent", "fedctta", "auto"), tmp_path / "run.checkpoint"
    whole = simulate(federated, stream)

    def stop(t, tally):
        if t == 9:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        simulate(federated, stream, checkpoint=place, save_every=-1, on_round=stop)
    resumed = simulate(federated, stream, checkpoint=place)
    assert_same(whole, resumed)
