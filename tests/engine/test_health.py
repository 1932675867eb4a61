"""Watchmen of all clients of a run: they see what `fedctta.adapt` sees of one device, and do what it does."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedctta
from fedctta.adapters import adapters
from fedctta.adapters.norm import NormEMA
from fedctta.aggregators import Server
from fedctta.aggregators.common.mixing import matrix
from fedctta.aggregators.fedavg import FedAvg
from fedctta.aggregators.local import Local
from fedctta.core.clients import Client, InChunks, by_loop, take
from fedctta.core.network import Network
from fedctta.data.domains import Domains
from fedctta.engine.health import HealthWatch
from fedctta.engine.rounds import Federation
from fedctta.engine.simulation import simulate
from fedctta.errors import UserError
from fedctta.results.health import ADAPTED, SOURCE
from fedctta.streams import build, schedules
from fedctta.streams.clusters import NIID

BATCH, SLOTS, CHECK = 24, 12, 4


@dataclass(frozen=True)
class Spoiler(NormEMA):
    """Moves the statistics a little, and spoils them while a batch is dark."""

    name: ClassVar[str] = "spoiler"
    momentum: float = 1e-3

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        after = super().adapt(network, client, x)
        dark = (x.mean() < 0).to(x.dtype)
        return after._replace(own={n: torch.lerp(t, torch.full_like(t, 1e6), dark) for n, t in after.own.items()})


@dataclass(frozen=True)
class Breaker(Spoiler):
    """Has no numbers left after a dark batch."""

    name: ClassVar[str] = "breaker"

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        after = super().adapt(network, client, x)
        broken = torch.where(x.mean() < 0, torch.nan, 0.0)
        return after._replace(own={n: t + broken for n, t in after.own.items()})


@pytest.fixture
def module(tiny_module):
    """A model that is sure of its predictions, so that there is something to lose."""
    with torch.no_grad():
        tiny_module[5].weight *= 60
    return tiny_module


def make_data(images=BATCH * SLOTS, shape=(3, 8, 8)):
    random = np.random.default_rng(0)
    light = {name: random.random((images, *shape), np.float32) for name in ("a", "dark", "b", "c")}
    light["dark"] -= 10
    return Domains(tuple(light), light, random.integers(0, 3, images), ("x", "y", "z"))


def make_stream(clients=1, schedule="iid", **options):
    """One domain after another; with clusters, some clients are in another one at a time."""
    how = NIID(clusters=clients) if schedule == "niid" else schedules.create(schedule)
    return build(how, make_data(BATCH * SLOTS * clients, **options), clients, SLOTS, BATCH, seed=0)


def play(
    module,
    adapter,
    stream,
    guard,
    *,
    aggregator=None,
    lift=by_loop,
    check=CHECK,
    predict="after",
    device="cpu",
    **options,
):
    network = Network(copy.deepcopy(module).to(device), torch.device(device))
    server = Server(network, lift, 0, stream.input_shape, stream.clients, lambda count: None)
    federation = Federation(adapter, aggregator or Local(), server, predict=predict, batch=BATCH)
    watch = HealthWatch(federation, len(stream), check, guard) if check else None
    return simulate(federation, stream, health=watch, predictions=True, **options), watch


def alone(module, adapter, stream, guard, client=0, predict="after"):
    """Return the classes that one device predicts by itself, and its model."""
    model = fedctta.adapt(module, adapter, guard=guard, check=CHECK, predict=predict)
    classes = [model(stream.slot(t).images[client]).argmax(1) for t in range(len(stream))]
    return torch.stack(classes), model


@pytest.mark.parametrize("predict", ["after", "before"])
@pytest.mark.parametrize("guard", ["reset", "freeze", "off"])
def test_one_client_without_a_server_is_a_device(guard, predict, module):
    stream = make_stream()
    tally, watch = play(module, Spoiler(), stream, guard, predict=predict)
    classes, model = alone(module, Spoiler(), stream, guard, predict=predict)
    assert torch.equal(tally.classes[:, 0], classes)
    (watchman,) = watch.watchmen
    assert watchman.alarms == model.health.alarms != ()
    assert [(0, alarm.batch) for alarm in model.health.alarms] == watch.alarms
    assert watchman.resting == (model.health.answers == "source")
    assert (SOURCE in watch.answers) == (guard != "off")
    for name, value in (("top_share", model.health.top_share), ("disagreement", model.health.disagreement)):
        assert float(watch.noted[name][-1, 0]) == pytest.approx(np.nan if value is None else value, nan_ok=True)


@pytest.mark.parametrize("guard", ["reset", "freeze", "off"])
def test_a_run_by_its_words_is_a_device_too(guard, module):
    asked = {"stream": "iid", "clients": 1, "batch": BATCH, "slots": SLOTS, "device": "cpu", "lift": "loop"}
    given = {"dataset": make_data(), "model": module, "adapter": Spoiler(), "aggregator": "local"}
    (record,) = fedctta.run(**given, **asked, check=CHECK, guard=guard)
    stream = make_stream()
    classes, model = alone(module, Spoiler(), stream, guard)
    right = [int((classes[t].numpy() == stream.slot(t).labels[0]).sum()) for t in range(len(stream))]
    assert record.correct[:, 0].tolist() == right
    (health,) = record.health
    assert health.alarms == tuple(alarm.batch for alarm in model.health.alarms) != ()
    assert health.answers == model.health.answers


@pytest.mark.parametrize("adapter", ["bn", "t3a"])
def test_methods_of_the_package_are_watched_as_on_a_device(adapter, module):
    stream = make_stream()
    tally, watch = play(module, adapters.create(adapter), stream, "reset")
    classes, model = alone(module, adapter, stream, "reset")
    assert torch.equal(tally.classes[:, 0], classes)
    assert watch.watchmen[0].alarms == model.health.alarms


def test_every_client_has_a_watchman_of_its_own(module):
    stream = make_stream(clients=3, schedule="niid")
    tally, watch = play(module, Spoiler(), stream, "reset", lift=InChunks(2))
    raised = set()
    for i in range(3):
        classes, model = alone(module, Spoiler(), stream, "reset", client=i)
        assert torch.equal(tally.classes[:, i], classes)
        assert [alarm.batch for alarm in model.health.alarms] == [t for client, t in watch.alarms if client == i]
        raised.add(model.health.alarms[0].batch)
    assert len(raised) == 3  # they meet the dark at different times


def test_watching_alone_changes_nothing(module):
    stream = make_stream(clients=2)
    watched, watch = play(module, Spoiler(), stream, "off", aggregator=FedAvg())
    plain, _ = play(module, Spoiler(), stream, "off", aggregator=FedAvg(), check=0)
    assert watch.alarms
    for name, tensor in plain.tensors().items():
        if name != "tally.seconds":
            assert torch.equal(tensor, watched.tensors()[name]), name


@pytest.mark.parametrize("rests", [[1], [0, 1, 2]])
def test_who_rests_neither_uploads_nor_receives(rests, module):
    stream = make_stream(clients=3)
    server = Server(Network(module), by_loop, 0, stream.input_shape, 3, lambda count: None)
    federation = Federation(Spoiler(momentum=0.5), FedAvg(), server)
    watch, state = HealthWatch(federation, len(stream), CHECK, "freeze"), federation.start()
    for i in rests:
        watch.watchmen[i].resting = True
    x, everybody = torch.from_numpy(stream.slot(0).images), torch.ones(3, dtype=torch.bool)
    after, outcome = watch.play(state, 0, x, everybody, None)
    working = [i for i in range(3) if i not in rests]
    one = Client({n: t[0] for n, t in after.clients.own.items()})
    if working:
        (each,) = {tuple(matrix(outcome.weights)[i].tolist()) for i in working}
        assert each == (0.5, 0.0, 0.5)
        alike = [federation.adapter.adapt(server.network, take(state.clients, i), x[i]) for i in working]
        mean = {n: torch.stack([client.own[n] for client in alike]).mean(0) for n in one.own}
        torch.testing.assert_close(one.own, mean)
    for i in rests:
        assert matrix(outcome.weights)[i].tolist() == np.eye(3)[i].tolist()
        assert all(torch.equal(t[i], state.clients.own[n][i]) for n, t in after.clients.own.items())
        assert torch.equal(outcome.logits[i], server.network({}, x[i]).logits)
    assert watch.answers[0].tolist() == [SOURCE if i in rests else ADAPTED for i in range(3)]
    size = sum(t[0].numel() * 4 for t in state.clients.own.values())
    assert (outcome.bytes_up, outcome.bytes_down) == (len(working) * size, len(working) * size)


def test_a_client_without_finite_numbers_goes_back_and_the_source_answers(module):
    stream = make_stream()
    tally, watch = play(module, Breaker(), stream, "reset")
    classes, model = alone(module, Breaker(), stream, "reset")
    assert torch.equal(tally.classes[:, 0], classes)
    dark = range(SLOTS, 2 * SLOTS)
    assert model.health.skipped == len(dark)
    assert [t for t in range(len(stream)) if watch.answers[t, 0] == SOURCE] == list(dark)
    assert not watch.alarms
    with pytest.raises(UserError, match="NaN or infinite"):
        play(module, Breaker(), stream, "off")


@pytest.mark.parametrize("guard", ["reset", "freeze", "off"])
@pytest.mark.parametrize("stop_at", [5, SLOTS + 3, 2 * SLOTS + 1])
def test_an_interrupted_run_ends_with_the_same_bits(guard, stop_at, module, tmp_path):
    stream = make_stream(clients=2, schedule="niid")
    how = {"aggregator": FedAvg(), "lift": InChunks(2)}
    whole, expected = play(module, Spoiler(), stream, guard, **how)

    def stop(t, tally):
        if t == stop_at:
            raise RuntimeError

    path = tmp_path / "place"
    with pytest.raises(RuntimeError):
        play(module, Spoiler(), stream, guard, **how, checkpoint=path, save_every=0.0, on_round=stop)
    resumed, watch = play(module, Spoiler(), stream, guard, **how, checkpoint=path)
    for name, tensor in whole.tensors().items():
        if name != "tally.seconds":
            assert torch.equal(tensor, resumed.tensors()[name]), name
    mine, other = watch.tensors(), expected.tensors()
    assert mine.keys() == other.keys()
    assert all(torch.equal(mine[n].nan_to_num(-1), other[n].nan_to_num(-1)) for n in mine)
    with pytest.raises(UserError, match="does not fit this run"):
        watch.restore({}, path)


def test_only_those_who_are_there_are_watched(module):
    stream = make_stream(clients=3)
    domain = stream.domain.copy()
    domain[::2, 1] = -1
    _, watch = play(module, Spoiler(), replace(stream, domain=domain), "reset")
    assert (watch.answers[::2, 1] == 0).all()
    assert watch.noted["top_share"][::2, 1].isnan().all()
    assert int(watch.watchmen[1].signals.batches) == len(stream) // 2


def test_data_without_a_mirror_are_checked_too():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)).eval()
    stream = make_stream(shape=(5,))
    tally, watch = play(module, Spoiler(), stream, "reset")
    classes, model = alone(module, Spoiler(), stream, "reset")
    assert torch.equal(tally.classes[:, 0], classes)
    assert watch.watchmen[0].alarms == model.health.alarms
    assert (watch.answers[0] == ADAPTED).all()


@pytest.mark.gpu
@pytest.mark.parametrize("guard", ["reset", "off"])
def test_on_a_gpu_the_same_alarms_are_raised(guard, module):
    stream = make_stream(clients=3, schedule="niid")
    here, expected = play(module, Spoiler(), stream, guard, lift=InChunks(2))
    there, watch = play(module, Spoiler(), stream, guard, lift=InChunks(2), device="cuda")
    assert watch.alarms == expected.alarms
    assert torch.equal(watch.answers, expected.answers)
    assert (there.classes.cpu() != here.classes).float().mean() < 0.01
