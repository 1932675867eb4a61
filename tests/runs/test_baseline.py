"""The model as it is stands beside every method, once per setting, and is played like any other run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from fedctta.adapters.none import NoAdaptation
from fedctta.core.clients import Client
from fedctta.core.network import Network
from fedctta.errors import UserError
from fedctta.models.inputs import read_batch
from fedctta.runs.baseline import add_baselines, baseline_of, refuse_idle_baseline
from fedctta.runs.cache import Cache
from fedctta.runs.experiment import run
from fedctta.runs.settings import expand

SMALL = {"clients": 4, "slots": 3, "batch": 4, "niid.clusters": 2, "device": "cpu"}
NAMED = {"dataset": "domains", "model": "mine"}


@pytest.fixture
def cache(domains, tiny_module):
    return Cache({"dataset": domains, "model": tiny_module})


def added(cache, **values):
    asked = expand({**NAMED, **SMALL, **values})
    found = add_baselines(asked, cache)
    assert found[: len(asked)] == asked
    return found[len(asked) :]


def test_methods_share_one_and_settings_have_their_own(cache):
    (one,) = added(cache, aggregator=["local", "fedavg"], adapter=["bn", "tent"], stragglers=[0, 0.5], lift=["vmap"])
    assert (one.adapter, one.aggregator, one.stragglers) == ("none", "local", 0)
    assert one.parameters == {"niid": {"clusters": 2}}
    found = added(cache, seed=[0, 1], stream=["niid", "iid"], batch=[4, 8])
    assert {(e.seed, e.stream, e.batch) for e in found} == set(product((0, 1), ("niid", "iid"), (4, 8)))
    assert len(found) == 8


def test_where_clients_lie_the_honest_ones_are_compared_with_themselves(domains, tiny_module):
    result = run(dataset=domains, model=tiny_module, aggregator="fedavg", liars=[0, 2], **SMALL)
    table = result.table()
    assert table.columns == ("niid / liars=0", "niid / liars=2")
    assert [row.label for row in table.rows] == ["No-Adapt", "FedAvg"]
    assert all(cell for row in table.rows for cell in row.cells)
    of_all, of_some = result.baselines
    lying = result.records[1].settings["lying"]
    assert of_all.seen.any(0).all()
    assert not of_some.seen[:, lying].any()
    assert np.array_equal(np.delete(of_some.correct, lying, 1), np.delete(of_all.correct, lying, 1))


def test_what_decides_nothing_without_adaptation_is_left_at_its_default(cache):
    idle = {"predict": "before", "check": 5, "guard": "reset", "retention": 8, "stragglers": 0.5, "interval": 3}
    (one,) = added(cache, adapter="tent", **{"tent.lr": 0.5}, aggregator="fedavg", **idle)
    assert one == added(cache)[0]
    assert baseline_of(one) == one


def test_only_what_is_missing_is_added(cache):
    assert added(cache, adapter=["none", "bn"], liars=[0, 1]) == []
    assert added(cache, adapter="none") == []
    asked = expand({**NAMED, **SMALL, "seed": [0, 1]})
    given = replace(baseline_of(asked[0]), lift="loop")  # another way to compute the same
    assert [each.seed for each in add_baselines([*asked, given], cache)[3:]] == [1]


def test_without_labels_there_is_nothing_to_show(domains, tiny_module):
    bare = replace(domains, labels=None)
    assert added(Cache({"dataset": bare, "model": tiny_module})) == []
    part = replace(domains, labels={"d1": domains.labels})
    assert len(added(Cache({"dataset": part, "model": tiny_module}))) == 1


def test_leaving_out_what_is_not_there_is_refused(cache):
    refuse_idle_baseline(expand({**NAMED, **SMALL}), cache)
    with pytest.raises(UserError, match="has no effect"):
        refuse_idle_baseline(expand({**NAMED, **SMALL, "adapter": ["none", "bn"]}), cache)


def test_it_is_the_run_that_could_be_asked_for(domains, tiny_module, tmp_path):
    given = {"dataset": domains, "model": tiny_module, **SMALL}
    result = run(**given, aggregator=["local", "fedavg"], out=tmp_path / "a")
    (idle,) = result.baselines
    (asked,) = run(**given, adapter="none")
    assert np.array_equal(idle.correct, asked.correct)
    assert np.array_equal(idle.entropy, asked.entropy)
    assert len(result) == 2
    assert [row.label for row in result.table().rows] == ["No-Adapt", "Local", "FedAvg"]
    again = run(**given, aggregator=["local", "fedavg"], out=tmp_path / "a", resume=True)
    assert [r.seconds for r in again.shown] == [r.seconds for r in result.shown]  # read, and not played again
    assert len(run(**given, aggregator="local", baseline=False).shown) == 1


def test_a_folder_is_known_by_what_was_asked_for(domains, tiny_module, tmp_path):
    given = {"dataset": domains, "model": tiny_module, **SMALL, "out": tmp_path}
    run(**given, aggregator="local")
    run(**given, aggregator="local", baseline=False)
    with pytest.raises(UserError, match="nothing to resume"):
        run(**given, aggregator="fedavg", resume=True)  # though both would have the same run without adaptation


@dataclass(frozen=True)
class Contrary(NoAdaptation):
    """Predicts the class that the model thinks least likely."""

    name: ClassVar[str] = "contrary"
    adapts: ClassVar[bool] = True

    def predict(self, network: Network, client: Client, x: Tensor) -> Tensor:
        return -super().predict(network, client, x)


def test_a_method_below_it_is_named_in_the_table(domains, tiny_module, tmp_path):
    labels = Network(tiny_module)({}, read_batch(domains.images["d0"], torch.device("cpu"))).logits.argmax(1).numpy()
    known = replace(domains, labels=labels, images=dict.fromkeys(domains.names, domains.images["d0"]))
    result = run(dataset=known, model=tiny_module, **SMALL, adapter=Contrary(), aggregator="local")
    assert result.baselines[0].accuracy == 1
    table = result.table()
    assert table.harm == (("Local", "niid", 100.0),)
    assert "Local is 100.0 points below doing nothing on niid." in table.markdown()
    page = result.write_report(tmp_path).read_text(encoding="utf-8")
    assert "Local is 100.0 points below doing nothing on niid." in page
    assert 'title="100.0 points below doing nothing">▼' in page
