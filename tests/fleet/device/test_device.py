"""The loop of a device: alone, free-running, and in lock-step, where it must equal the simulation."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from fedctta.adapters.bn import BatchStatistics
from fedctta.aggregators import Uploads, mix, overall, restrict
from fedctta.core.clients import Client
from fedctta.engine.first_clients import first_client
from fedctta.errors import UserError
from fedctta.fleet.device.device import Device, Stop
from fedctta.fleet.device.device_state import DeviceState, StreamPosition
from fedctta.fleet.device.equipment import Equipment
from fedctta.fleet.device.handover import Download, Handover, Snapshot
from fedctta.fleet.device.predictions import open_predictions
from fedctta.fleet.device.request_handler import RequestHandler
from fedctta.fleet.device.sources import Batch
from fedctta.fleet.simulation.simulated import one_client, parse_stream
from fedctta.fleet.transport.wire import Parcel, pack, unpack
from fedctta.machine import arithmetic
from fedctta.models.inputs import to_input
from fedctta.registry import parameters_of
from fedctta.runs.build import choose_parts, federate
from fedctta.runs.cache import Cache

CLIENTS = 4


def make_device(folder: Path, equipment: Equipment, client: Client | None = None, lockstep: bool = False) -> Device:
    client = client or equipment.adapter.init(equipment.network)
    out, keep = open_predictions(folder / "p.jsonl"), DeviceState(folder, "me")
    return Device(equipment, client, StreamPosition(), out, keep, Handover(Snapshot(client, None, 0)), lockstep)


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
    assert device.place == StreamPosition(3, 12)
    device.keep._lock.close()
    assert DeviceState(tmp_path, "me").load(client)[1] == StreamPosition(3, 12)


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


def test_a_batch_too_small_to_adapt_to_is_predicted_all_the_same(tmp_path, tiny_network, caplog):
    device = make_device(tmp_path, Equipment(tiny_network, BatchStatistics(), (), lambda: tiny_network))
    device.walk(batches(1, images=1), Stop())
    assert len(rows(tmp_path)) == 1
    assert rows(tmp_path)[0]["name"] is None
    assert "without adapting" in caplog.text


def test_nothing_is_written_of_a_batch_whose_outputs_are_not_finite(tmp_path, equipment):
    device = make_device(tmp_path, equipment)
    device.predict(next(batches(1)), Stop())
    device.client = Client({name: t * torch.nan for name, t in device.client.own.items()})
    with pytest.raises(UserError, match="batch 1 are not finite"):
        device.predict(next(batches(1)), Stop())
    assert len(rows(tmp_path)) == 4


def test_images_and_names_that_do_not_fit_the_model_are_told(tmp_path, tiny_network):
    head = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 4 * 4, 3))
    from fedctta.adapters.none import NoAdaptation
    from fedctta.core.network import Network

    flat = Network(head)
    (tmp_path / "a").mkdir()
    with pytest.raises(UserError, match="cannot take images of 3x8x8"):
        make_device(tmp_path / "a", Equipment(flat, NoAdaptation(), (), lambda: flat)).walk(batches(1), Stop())
    (tmp_path / "b").mkdir()
    four = Equipment(tiny_network, BatchStatistics(), tuple("abcd"), lambda: tiny_network)
    with pytest.raises(UserError, match="check --model and --classes"):
        make_device(tmp_path / "b", four).walk(batches(1), Stop())


def test_stopped_in_lockstep_the_batch_is_left_for_later(tmp_path, equipment):
    device, stop = make_device(tmp_path, equipment, lockstep=True), Stop()
    threading.Timer(0.05, lambda: setattr(stop, "asked", True)).start()
    before = device.client
    device.walk(batches(3), stop)
    assert rows(tmp_path) == []
    assert device.client is before
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
    words = f"dataset=shapes-c,domains=fog+contrast,clients=4,niid.clusters=2,slots=2,seed=3,adapter={adapter}"
    experiment, _ = parse_stream(f"{words},aggregator={aggregator}", 5)
    with arithmetic(), torch.no_grad():
        parts = choose_parts(experiment, torch.device("cpu"), Cache())
        federation, stream = federate(experiment, parts), parts.stream
        state, simulated, weights = federation.start(), [], []
        active = torch.ones(CLIENTS, dtype=torch.bool)
        for t in range(len(stream)):
            state, outcome = federation.play(state, t, to_input(stream.slot(t).images), active, None)
            simulated.append(outcome.logits.argmax(-1))
            weights.append(outcome.collaboration)

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
            device.handover.wait_for_moment(0, 30)
            devices, desks, threads = [*devices, device], [*desks, desk], [*threads, walk]
        collaborations = serve(federation, desks, len(stream))
        for walk in threads:
            walk.join(30)
    predicted = torch.tensor([[row["class"] for row in rows(tmp_path / f"{k}")] for k in range(CLIENTS)])
    assert torch.equal(predicted.view(CLIENTS, len(stream), 5).transpose(0, 1), torch.stack(simulated))
    torch.testing.assert_close(collaborations, torch.stack(weights), rtol=0, atol=1e-4)


def copied(network):
    """A network of the same model for another thread."""
    from fedctta.core.network import Network
    from fedctta.models.zoo import load_model

    return Network(load_model("resnet8-w16", "shapes-c"))
