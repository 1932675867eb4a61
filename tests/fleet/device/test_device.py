"""The loop of a device: alone, free-running, and in lock-step, where it must equal the simulation."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from fedctta.adapters.bn import BatchStatistics
from fedctta.adapters.norm import NormEMA
from fedctta.aggregators import Uploads
from fedctta.aggregators.common.mixing import matrix, mix, overall, restrict
from fedctta.core.clients import Client
from fedctta.core.network import Network
from fedctta.engine.first_clients import first_client
from fedctta.errors import UserError
from fedctta.fleet.device.device import Device, Stop
from fedctta.fleet.device.device_state import DeviceState, StreamPosition
from fedctta.fleet.device.equipment import Equipment
from fedctta.fleet.device.handover import Download, Handover, Snapshot
from fedctta.fleet.device.predictions import open_predictions
from fedctta.fleet.device.request_handler import RequestHandler
from fedctta.fleet.device.sources import Batch
from fedctta.fleet.simulation.simulated import one_client
from fedctta.fleet.transport.wire import Parcel, pack, unpack
from fedctta.machine import arithmetic
from fedctta.models.inputs import to_input
from fedctta.online.adaptation import Adaptation
from fedctta.registry import parameters_of
from fedctta.runs.build import choose_parts, federate
from fedctta.runs.cache import Cache
from fedctta.runs.settings import single

CLIENTS = 4


def make_device(
    folder: Path, equipment: Equipment, client: Client | None = None, lockstep: bool = False, **words: Any
) -> Device:
    adaptation = Adaptation(equipment.network, equipment.adapter, **{"guard": "off", **words})
    adaptation.take_up(client or equipment.adapter.init(equipment.network))
    out, keep = open_predictions(folder / "p.jsonl"), DeviceState(folder, "me")
    handover = Handover(Snapshot(adaptation.client, None, 0))
    return Device(equipment, adaptation, StreamPosition(), out, keep, handover, lockstep)


def batches(count, images=4, seed=0):
    random = np.random.default_rng(seed)
    for t in range(count):
        yield Batch(random.integers(0, 256, (images, 8, 8, 3), np.uint8), tuple(f"{t}/{k}" for k in range(images)))


def rows(folder):
    return [json.loads(line) for line in (folder / "p.jsonl").read_text().splitlines()]


@pytest.fixture
def equipment(tiny_network):
    return Equipment(tiny_network, BatchStatistics(0.5), ("a", "b", "c"), lambda: tiny_network)


def test_alone_it_adapts_predicts_writes_and_saves(tmp_path, equipment):
    device = make_device(tmp_path, equipment)
    device.walk(batches(3), Stop())
    client = equipment.adapter.init(equipment.network)
    wanted = []
    for batch in batches(3):
        x = to_input(batch.images)
        client = equipment.adapter.adapt(equipment.network, client, x)
        wanted += equipment.adapter.predict(equipment.network, client, x).argmax(-1).tolist()
    assert [row["class"] for row in rows(tmp_path)] == wanted
    assert [row["name"] for row in rows(tmp_path)] == ["abc"[k] for k in wanted]
    assert [row["batch"] for row in rows(tmp_path)] == [0] * 4 + [1] * 4 + [2] * 4
    assert all(0 < row["confidence"] <= 1 for row in rows(tmp_path))
    assert device.place == StreamPosition(3, 12, size=(8, 8, 3))
    device.keep._lock.close()
    again = Adaptation(equipment.network, equipment.adapter)
    assert DeviceState(tmp_path, "me").load(again) == StreamPosition(3, 12, size=(8, 8, 3))
    assert again.health == device.adaptation.health


def test_free_running_a_download_counts_from_the_next_batch_on(tmp_path, equipment):
    device = make_device(tmp_path, equipment)
    sent = {name: torch.full_like(t, 0.25) for name, t in device.client.own.items()}
    walked = list(batches(2))
    with torch.no_grad():
        device.predict(walked[0], Stop())
        device.handover.deliver(Download(sent, 4, "run"))
        device.predict(walked[1], Stop())
        wanted = equipment.adapter.adapt(equipment.network, Client(sent), to_input(walked[1].images))
    for name, tensor in wanted.own.items():
        torch.testing.assert_close(device.client.own[name], tensor, rtol=0, atol=0)
    assert (device.place.run, device.place.round) == ("run", 4)
    assert device.handover.moment.batches == 2
    assert device.handover.moment.client is device.client


@pytest.mark.parametrize("momentum", [0.5, 1.0])
def test_a_method_that_forgets_its_downloads_is_told_once(tmp_path, tiny_network, caplog, momentum):
    device = make_device(tmp_path, Equipment(tiny_network, BatchStatistics(momentum), (), lambda: tiny_network))
    sent = {name: torch.full_like(t, 0.25) for name, t in device.client.own.items()}
    for batch in batches(3):
        device.handover.deliver(Download(sent, 0))
        device.predict(batch, Stop())
    assert caplog.text.count("gains nothing") == (momentum == 1)


def test_small_batches_are_predicted_among_the_last_images_and_shared_with_them(tmp_path, tiny_network):
    plain = Equipment(tiny_network, BatchStatistics(), (), lambda: tiny_network)
    device = make_device(tmp_path, plain, window=4)
    device.walk(batches(5, images=1), Stop())
    assert len(rows(tmp_path)) == 5
    assert rows(tmp_path)[0]["name"] is None
    x = to_input(np.concatenate([batch.images for batch in batches(4, images=1)]))
    with torch.no_grad():
        client = plain.adapter.adapt(tiny_network, plain.adapter.init(tiny_network), x)
        wanted = plain.adapter.predict(tiny_network, client, x)[-1].argmax()
    assert rows(tmp_path)[3]["class"] == wanted
    assert torch.equal(device.handover.moment.x, x)  # four images were learnt from, and not one
    assert device.adaptation.batches == 1


def test_a_model_that_becomes_nan_changes_nothing(tmp_path, equipment):
    device = make_device(tmp_path, equipment)
    walked = list(batches(3))
    device.predict(walked[0], Stop())
    before = device.client
    spoilt = {name: torch.full_like(t, 3e38) for name, t in before.own.items()}
    device.handover.deliver(Download(spoilt, 4, "run"))  # finite, and yet too large to compute with
    device.predict(walked[1], Stop())
    with torch.no_grad():
        wanted = equipment.network({}, to_input(walked[1].images)).logits.argmax(-1).tolist()
    assert [row["class"] for row in rows(tmp_path)][4:] == wanted
    assert device.adaptation.skipped == 1


def test_nothing_is_written_of_a_batch_whose_outputs_are_not_finite(tmp_path, equipment):
    device = make_device(tmp_path, equipment)
    device.predict(next(batches(1)), Stop())
    name = next(name for name in equipment.network.state if name.endswith("weight"))
    equipment.network.state[name] = equipment.network.state[name] * torch.nan
    with pytest.raises(UserError, match="batch 1 are not finite"):
        device.predict(next(batches(1)), Stop())
    assert len(rows(tmp_path)) == 4


@dataclass(frozen=True)
class Spoiler(NormEMA):
    """Spoils the model on every batch."""

    name: ClassVar[str] = "spoiler"

    def adapt(self, network, client, x):
        return client._replace(own={name: torch.full_like(t, 1e6) for name, t in client.own.items()})


@pytest.fixture
def spoilt(tiny_module):
    with torch.no_grad():
        tiny_module[5].weight *= 60  # a model that is sure, so that there is something to lose
    network = Network(tiny_module)
    return Equipment(network, Spoiler(), (), lambda: network)


@pytest.mark.parametrize(
    ("guard", "said"), [("reset", "until adapting helps"), ("freeze", "--guard reset"), ("off", "--guard off")]
)
def test_an_alarm_is_one_line_and_the_guard_acts(tmp_path, spoilt, caplog, guard, said):
    device = make_device(tmp_path, spoilt, guard=guard)
    device.walk(batches(6, images=32), Stop())
    lines = [record.getMessage() for record in caplog.records if "alarm at" in record.getMessage()]
    assert len(lines) == len(device.adaptation.watchman.alarms) >= 1
    assert "source model on" in lines[0]
    assert said in lines[0]
    last = list(batches(6, images=32))[-1]
    with torch.no_grad():
        source = spoilt.network({}, to_input(last.images)).logits.argmax(-1).tolist()
    assert ([row["class"] for row in rows(tmp_path)][-32:] == source) == (guard != "off")


def test_in_lockstep_the_guard_acts_if_it_is_asked_to(tmp_path, spoilt):
    device = make_device(tmp_path, spoilt, lockstep=True, guard="reset")
    stop, published = Stop(), []

    def serve():
        seen = 0
        while device.handover.wait_for_moment(seen, 60) and not device.handover.ended:
            moment = device.handover.moment
            seen = moment.batches
            published.append(moment.client)
            device.handover.deliver(Download(moment.client.own, seen - 1, "run"))

    server = threading.Thread(target=serve)
    server.start()
    device.walk(batches(6, images=32), stop)
    server.join(60)
    assert len(published) == 6  # also of batches that were not adapted to
    assert device.adaptation.health.answers == "source"
    assert float(published[-1].own["1.running_mean"].abs().max()) < 1e3
    assert len(rows(tmp_path)) == 6 * 32


def test_images_and_names_that_do_not_fit_the_model_are_told(tmp_path, tiny_network):
    head = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 4 * 4, 3))
    from fedctta.adapters.none import NoAdaptation

    flat = Network(head)
    (tmp_path / "a").mkdir()
    with pytest.raises(UserError, match="cannot take images of 3x8x8"):
        make_device(tmp_path / "a", Equipment(flat, NoAdaptation(), (), lambda: flat)).walk(batches(1), Stop())
    (tmp_path / "b").mkdir()
    four = Equipment(tiny_network, BatchStatistics(), tuple("abcd"), lambda: tiny_network)
    with pytest.raises(UserError, match="check --model and --classes"):
        make_device(tmp_path / "b", four).walk(batches(1), Stop())


def test_what_was_learnt_is_saved_when_the_source_fails(tmp_path, equipment):
    device = make_device(tmp_path, equipment)
    device.keep._every = 100

    def failing():
        yield from batches(2)
        raise UserError("the camera is gone")

    with pytest.raises(UserError, match="the camera is gone"):
        device.walk(failing(), Stop())
    again = Adaptation(equipment.network, equipment.adapter, guard="off")
    device.keep._lock.close()
    assert DeviceState(tmp_path, "me").load(again).batches == 2
    assert all(torch.equal(tensor, device.client.own[name]) for name, tensor in again.client.own.items())


def test_stopped_in_lockstep_the_batch_is_left_for_later(tmp_path, equipment):
    device, stop = make_device(tmp_path, equipment, lockstep=True), Stop()
    threading.Timer(0.05, lambda: setattr(stop, "asked", True)).start()
    before = device.client
    device.walk(batches(3), stop)
    assert rows(tmp_path) == []
    assert device.client is before
    assert device.place == StreamPosition()
    assert device.handover.ended


def serve(federation, desks, rounds):
    """Lead devices through lock-step rounds as a server does; return W of every round."""
    server, aggregator = federation.server, federation.aggregator
    memory, downloads, collaborations = aggregator.init(server), None, []
    note = {"ask": 1, "lockstep": 1, "run": "r", "aggregator": aggregator.name}
    note["parameters"] = json.dumps(parameters_of(aggregator))

    def ask(k, t, ask=1):
        arrays = {} if downloads is None else {f"own.{n}": v[k].numpy() for n, v in downloads.items()}
        flat = pack(Parcel("step", t, {**note, "ask": ask}, arrays))
        return unpack(pack(desks[k].answer(unpack(flat, 1 << 30))), 1 << 30)

    for t in range(rounds):
        replies = [ask(k, t) for k in range(len(desks))]
        assert [reply.kind for reply in replies] == ["upload"] * len(desks)
        parts = {"own": {}, "signal": {}}
        for name in replies[0].arrays:
            part, _, tensor = name.partition(".")
            parts[part][tensor] = torch.stack([torch.from_numpy(reply.arrays[name]) for reply in replies])
        active = torch.ones(len(desks), dtype=torch.bool)
        uploads = Uploads(parts["own"], parts["signal"], active)
        mixing, memory = aggregator.collaborate(server, uploads, memory)
        mixing = restrict(mixing, active)
        collaborations.append(overall(mixing, parts["own"]))
        downloads, memory = aggregator.step(server, uploads, mix(mixing, parts["own"]), active, memory)
    for k in range(len(desks)):
        assert ask(k, rounds, 0).note["received"] == 1
    return torch.stack(collaborations)


@pytest.mark.parametrize(
    ("adapter", "aggregator"),
    [("bn", "fedtsa"), ("bbn", "pfedbbn"), ("grad", "fedavg")],
)
def test_lockstep_equals_the_simulation(tmp_path, monkeypatch, adapter, aggregator):
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path.parent / "fleet-home"))
    words = "dataset=shapes-c,domains=fog+contrast,clients=4,niid.clusters=2,slots=2,seed=3"
    experiment = single(dict(word.split("=") for word in words.split(",")) | {"batch": 5, "adapter": adapter})
    experiment = replace(experiment, aggregator=aggregator)
    with arithmetic(), torch.no_grad():
        parts = choose_parts(experiment, torch.device("cpu"), Cache())
        federation, stream = federate(experiment, parts), parts.stream
        state, simulated, weights = federation.start(), [], []
        active = torch.ones(CLIENTS, dtype=torch.bool)
        for t in range(len(stream)):
            state, outcome = federation.play(state, t, to_input(stream.slot(t).images), active, None)
            simulated.append(outcome.logits.argmax(-1))
            weights.append(matrix(outcome.weights))

        network = federation.network
        devices, desks, threads = [], [], []
        for k in range(CLIENTS):
            (tmp_path / f"{k}").mkdir()
            own_network = Equipment(copied(network), federation.adapter, (), lambda: copied(network))
            client = first_client(
                own_network.network, federation.adapter, federation.server.images, federation.batch, 3, k
            )
            device = make_device(tmp_path / f"{k}", own_network, client, lockstep=True)
            known = (own_network.network, federation.adapter, device.handover)
            desk = RequestHandler(f"device-{k}", *known, lockstep=True, spare=own_network.spare)
            walk = threading.Thread(target=device.walk, args=(one_client(f"{words},client={k}", 5, 0), Stop()))
            walk.start()
            device.handover.wait_for_moment(0, 60)
            devices, desks, threads = [*devices, device], [*desks, desk], [*threads, walk]
        collaborations = serve(federation, desks, len(stream))
        for walk in threads:
            walk.join(60)
    predicted = torch.tensor([[row["class"] for row in rows(tmp_path / f"{k}")] for k in range(CLIENTS)])
    assert torch.equal(predicted.view(CLIENTS, len(stream), 5).transpose(0, 1), torch.stack(simulated))
    torch.testing.assert_close(collaborations, torch.stack(weights), rtol=0, atol=1e-4)


def copied(network):
    """A network of the same model for another thread."""
    from fedctta.models.zoo import load_model

    return Network(load_model("resnet8-w16", "shapes-c"))
