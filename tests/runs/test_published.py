"""A preset's published numbers: beside which runs they stand, and mistakes in their names."""

from __future__ import annotations

import pytest

from fedctta.errors import UserError
from fedctta.runs.experiment import run
from fedctta.runs.published import refuse_idle_numbers, suits
from fedctta.runs.settings import Preset, expand, load_preset

VALUES = {"dataset": "shapes-c", "aggregator": ["fedavg", "fedctta"], "fedctta.temperature": [0.5, 1]}


@pytest.mark.parametrize(
    ("words", "suitable"),
    [
        ({}, True),
        ({"seed": 5, "slots": 1, "batch": 10, "clients": 20, "aggregator": "fedavg", "stream": "iid"}, True),
        ({"dataset": "scenes"}, False),
        ({"severity": 3}, False),
        ({"domains": "fog"}, False),
        ({"clients": 4, "niid.clusters": 4}, False),
        ({"batch": [10, 20]}, False),
        ({"adapter": "tent"}, False),
    ],
)
def test_published_numbers_stand_beside_runs_of_their_own_protocol(words, suitable):
    demo = load_preset("demo")
    assert suits(demo, expand({**demo.values, **words})) is suitable


@pytest.mark.parametrize(
    ("published", "told"),
    [
        ({"FedAvgg": {"niid": 61}}, "unknown method in .published. of mine.toml 'FedAvgg': did you mean FedAvg"),
        ({"FedAvg": {"nid": 61}}, "unknown column of FedAvg in .published. of mine.toml 'nid': did you mean niid"),
        ({"FedCTTA": {"niid": 61}}, "unknown method in .published. of mine.toml 'FedCTTA'.*FedCTTA temperature=0.5"),
        ({"fedavg": {"niid": 61}, "No-Adapt": {"niid": 5}, "FedCTTA temperature=1.0": {"niid": 7}}, ""),
    ],
)
def test_names_that_no_run_has_are_told(published, told):
    preset = Preset("", VALUES, published, own=True)
    narrowed = expand({"dataset": "shapes-c", "aggregator": "fedavg"})
    if not told:
        return refuse_idle_numbers("mine.toml", preset, narrowed)
    with pytest.raises(UserError, match=told):
        refuse_idle_numbers("mine.toml", preset, narrowed)


def test_a_mistake_in_a_file_is_told_before_anything_is_played(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('[run]\ndataset = "shapes-c"\naggregator = "fedavg"\n[published]\nFedAvg = { nid = 61 }\n')
    with pytest.raises(UserError, match="unknown column of FedAvg"):
        run(str(file), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
