"""Both sides find out what they do not agree on, and say it in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parent))

from pretend import assemble, context_of, make_devices

from fedctta.adapters.bn import BatchStatistics
from fedctta.adapters.recall import Recall
from fedctta.core.network import Network
from fedctta.fleet import agreement
from fedctta.fleet.agreement import difference, disagreement, terms_of
from fedctta.fleet.device.handover import Handover, Snapshot
from fedctta.fleet.device.request_handler import RequestHandler
from fedctta.fleet.server.server_app import app
from fedctta.fleet.simulation.grid import InProcessGrid
from fedctta.fleet.transport.wire import Parcel
from fedctta.models.zoo import load_model


@pytest.fixture(scope="module")
def network():
    return Network(load_model("resnet8-w16", "shapes"))


@pytest.fixture(scope="module")
def other():
    module = load_model("resnet8-w16", "shapes")
    with torch.no_grad():
        next(module.parameters())[0] += 1e-3
    return Network(module)


def test_the_same_is_the_same_and_noise_is_a_devices_own(network):
    again = Network(load_model("resnet8-w16", "shapes"))
    assert disagreement(terms_of(again, BatchStatistics()), terms_of(network, BatchStatistics())) is None
    noisy = Recall().with_noise(1.0)
    assert disagreement(terms_of(network, noisy), terms_of(network, Recall())) is None


def test_weights_parameters_and_versions(network, other, monkeypatch):
    server = terms_of(network, BatchStatistics())
    assert "other weights" in disagreement(terms_of(other, BatchStatistics()), server)
    assert disagreement(terms_of(network, BatchStatistics(momentum=0.3)), server) == (
        "the device has bn.momentum=0.3, the server bn.momentum=1.0: give both the same"
    )
    assert "adapter 'recall'" in disagreement(terms_of(network, Recall()), server)
    for version, refused in (("0.8.99", False), ("0.7.0", True), ("1.8.0", True)):
        monkeypatch.setattr(agreement, "__version__", version)
        device = terms_of(network, BatchStatistics())
        assert bool(disagreement(device, {**server, "version": "0.8.0"})) == refused
        assert difference(device, {**server, "version": "0.8.0"}) == (
            f"the device has fedctta {version}, the server 0.8.0"
        )


@pytest.mark.parametrize("told", ["[" * 2000, "7", '"x"'])
def test_nonsense_is_refused_and_no_error(network, told):
    server = terms_of(network, BatchStatistics())
    assert "cannot be read" in disagreement({**server, "adapter_parameters": told}, server)


def test_a_device_says_why_it_does_not_take_part(network, other, caplog):
    handover = Handover(Snapshot(BatchStatistics().init(other), torch.rand(4, 3, 32, 32), 5))
    handler = RequestHandler("d", other, BatchStatistics(), handover, spare=lambda: other)
    reply = handler.answer(Parcel("hello", 0, {"aggregator": "fedavg", **terms_of(network, BatchStatistics())}))
    assert reply.kind == "refused"
    assert "other weights" in reply.note["reason"]
    assert "other weights" in caplog.text
    assert handler.answer(Parcel("hello", 0, {"aggregator": "fedavg"})).note["weights"]


@pytest.mark.parametrize("honest", [True, False])
def test_other_weights_are_refused_and_counted(tmp_path, other, honest):
    """A device with other weights, which says so or hides what the server told it."""
    federation, stream = assemble(aggregator="fedavg")
    devices = make_devices(federation, stream, 4)
    devices[101].network = other
    if honest:
        devices[101].hello = lambda: Parcel("refused", 0, {"device": "device-2", "reason": "other weights"})
    fleet = {"rounds": 2, "devices": 3, "deadline": 1.0, "lockstep": False}
    app(InProcessGrid(devices), context_of(tmp_path, fleet, aggregator="fedavg"))
    status = json.loads((tmp_path / "server" / "status.json").read_text())
    assert [node["device"] for node in status["nodes"]] == ["device-0", "device-1", "device-3"]
    assert status["refused"] > 0
    assert "other weights" in (tmp_path / "server" / "refusals.jsonl").read_text()
