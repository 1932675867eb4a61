"""What goes over the wire, and that the page about it says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedctta
from fedctta.adapters import adapters
from fedctta.aggregators import aggregators
from fedctta.core.network import Network
from fedctta.errors import UserError
from fedctta.models.zoo import load_model
from fedctta.uploads.traffic import Wire, kind_of, on_the_wire, table

PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"


@pytest.fixture
def network():
    return Network(load_model("resnet8", "cifar10-c", 10, "auto"))


def wire(network, adapter, aggregator):
    return on_the_wire(network, adapters.create(adapter), aggregators.create(aggregator), (3, 32, 32))


def test_every_tensor_has_a_kind(tiny_network):
    kinds = {name: kind_of(tiny_network, name) for name in tiny_network.state}
    assert kinds["1.running_var"] == "statistics"
    assert kinds["1.weight"] == "scales"
    assert kinds["5.bias"] == "head"
    assert kinds["0.weight"] == "weights"


def test_statistics_of_bn_travel(network):
    floats = sum(tensor.numel() for tensor in network.statistics.values())
    assert wire(network, "bn", "fedavg") == Wire(("statistics",), (), 4 * floats, 0)


def test_signals_travel_too(network):
    assert wire(network, "tent", "fedtsa")[1:] == (("indicator",), 10_752, 4 * 256)


def test_local_sends_nothing_and_what_cannot_be_is_refused(network):
    assert wire(network, "grad", "local") == Wire((), (), 0, 0)
    with pytest.raises(UserError, match="fedbn"):
        wire(network, "bn", "fedbn")


def test_bytes_are_those_that_a_run_counts(domains, tiny_module):
    for aggregator in ("fedctta", "ugsa"):
        values = {"clients": 4, "slots": 1, "batch": 4, "stream": "iid", "aggregator": aggregator, "device": "cpu"}
        (record,) = fedctta.run(model=tiny_module, dataset=domains, **values)
        told = on_the_wire(Network(tiny_module), adapters.create("bn"), aggregators.create(aggregator), (3, 8, 8))
        assert record.bytes_up == 4 * len(record.seen) * (told.bytes_model + told.bytes_signals)
        assert record.bytes_down == 4 * len(record.seen) * told.bytes_model


def test_the_page_shows_what_the_code_says(network, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path))
    with torch.no_grad():
        assert table(network, (3, 32, 32)) in PAGE.read_text(encoding="utf-8")
