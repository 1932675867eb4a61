"""How a device fares: on a line, in a file, and as far as a server believes it."""

from __future__ import annotations

import json

import pytest
import torch

from fedctta.adapters import adapters
from fedctta.fleet.device.health_report import describe_health, health_in, note_health, read_health, write_health
from fedctta.fleet.transport.wire import Parcel, pack, unpack
from fedctta.online.adaptation import Adaptation


@pytest.fixture
def adaptation(tiny_network):
    found = Adaptation(tiny_network, adapters.create("tent"))
    with torch.no_grad():
        found.answer(torch.rand(8, 3, 8, 8))
    return found


def test_before_the_first_batch_little_is_known(tiny_network):
    new = Adaptation(tiny_network, adapters.create("tent"))
    assert describe_health(new) == "the adapted model answers; 0 alarms, 0 batches not adapted to"
    assert note_health(new) == {"health.answers": "adapted", "health.alarms": 0, "health.skipped": 0}


def test_a_line_says_how_it_fares(adaptation):
    adaptation.skipped, adaptation.watchman.resting = 1, True
    line = describe_health(adaptation)
    assert line.startswith("the source model answers; estimated accuracy ")
    assert line.endswith("; 0 alarms, 1 batch not adapted to")
    assert f"class {adaptation.health.top_class} is predicted most often" in line


def test_a_file_has_everything(adaptation, tmp_path):
    write_health(tmp_path / "health.json", adaptation)
    told = read_health(tmp_path / "health.json")
    assert told["entropy"] == adaptation.health.entropy
    assert told["batches"] == 1
    assert read_health(tmp_path / "nothing.json") == {}
    (tmp_path / "health.json").write_text(json.dumps([1]))
    assert read_health(tmp_path / "health.json") == {}


def test_a_server_reads_what_a_device_notes(adaptation):
    sent = unpack(pack(Parcel("nothing", 0, {"device": "d", **note_health(adaptation)})), 1 << 20)
    told = health_in(sent.note)
    assert told["accuracy"] == round(adaptation.health.accuracy, 2)
    assert told.keys() == {"answers", "alarms", "skipped", "accuracy", "source_accuracy"}


def test_a_server_believes_only_what_can_be():
    wrong = {"health.answers": "nobody", "health.alarms": -1, "health.accuracy": 1.5, "health.mood": 1, "alarms": 3}
    assert health_in({**wrong, "health.skipped": 2}) == {"skipped": 2}
