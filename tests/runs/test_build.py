"""From the names of an experiment to its parts, its federation and the words of its record."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedctta.core.clients import InChunks, by_loop
from fedctta.core.network import Network
from fedctta.engine.lifting import LONG
from fedctta.errors import UserError
from fedctta.runs import build
from fedctta.runs.build import (
    affordable_slots,
    check_parts,
    choose_graphs,
    choose_lifter,
    choose_methods,
    choose_parts,
    choose_slots,
    choose_stream,
    describe,
    federate,
    refuse_large_rounds,
    refuse_precision,
)
from fedctta.runs.cache import Cache
from fedctta.runs.settings import single

CPU = torch.device("cpu")
SMALL = {"dataset": "domains", "model": "mine", "clients": 4, "slots": 3, "batch": 4, "niid.clusters": 2}


@pytest.fixture
def cache(domains, tiny_module):
    return Cache({"dataset": domains, "model": tiny_module})


@pytest.fixture
def tell(cache):
    """Give what the record says of an experiment."""

    def tell(replayed=0, lift=by_loop, **values):
        experiment = single({**SMALL, **values})
        parts = choose_parts(experiment, CPU, cache)
        return describe(experiment, parts, federate(experiment, parts, lift), replayed)

    return tell


def test_slots_fill_the_data_up_to_the_papers_fifty():
    assert affordable_slots(12, batch=4) == 3
    assert affordable_slots(3, batch=4) == 1
    assert affordable_slots(10_000, batch=10) == 50


def test_slots_are_those_asked_for_or_as_many_as_there_are_images_for(domains):
    for slots, expected in ((2, 2), (None, 3)):  # 48 images for 4 clients in batches of 4
        experiment = replace(single(SMALL), slots=slots)
        methods = choose_methods(experiment)
        assert choose_slots(experiment, methods, domains) == expected
        assert len(choose_stream(experiment, methods, domains)) == 3 * expected  # domains


def test_parts_are_those_named(cache, tiny_module):
    parts = choose_parts(single({**SMALL, "adapter": "tent", "aggregator": "fedavg", "tent.lr": 0.5}), CPU, cache)
    assert (parts.methods.adapter.name, parts.methods.adapter.lr) == ("tent", 0.5)
    assert parts.methods.aggregator.name == "fedavg"
    assert parts.stream.clients == 4
    assert parts.client.own.keys() == set(parts.network.affine)


def test_a_wrong_name_is_told_before_data_are_loaded(monkeypatch):
    monkeypatch.setattr(Cache, "data", None)
    with pytest.raises(UserError, match="did you mean tent"):
        choose_parts(single({**SMALL, "adapter": "tentt"}), CPU, Cache())


def test_the_federation_plays_what_the_experiment_says(cache):
    experiment = single({**SMALL, "interval": 2, "predict": "before", "seed": 3, "stale": "refuse", "decay": 0.25})
    federation = federate(experiment, choose_parts(experiment, CPU, cache), by_loop)
    assert (federation.interval, federation.predict, federation.batch) == (2, "before", 4)
    assert (federation.server.seed, federation.server.clients, federation.server.shape) == (3, 4, (3, 8, 8))
    assert federation.server.lift is by_loop
    assert [(stage.stale, stage.decay) for stage in federation.stages] == [("refuse", 0.25)]


def test_the_record_resolves_every_default(tell):
    told = tell(**{"fedctta.ema": 0.5})
    assert (told["model"], told["clients"], told["slots"], told["device"]) == ("mine", 4, 3, "cpu")
    assert told["lift"] == "loop"
    assert told["niid"]["clusters"] == 2
    assert told["fedctta"]["ema"] == 0.5
    assert "temperature" in told["fedctta"]
    assert told["bn"] == {"momentum": 1.0}
    assert "parameters" not in told
    assert not {"lying", "privacy", "classes"} & told.keys()


def test_the_record_says_how_clients_were_lifted(tell):
    assert tell(lift=InChunks(2))["lift"] == "vmap 2 clients at a time"
    assert tell(replayed=5)["lift"] == "loop, 5 of 9 rounds as a CUDA graph"


def test_the_record_says_who_lies_what_noise_guarantees_and_why_nobody_shares(tell):
    told = tell(aggregator="fedavg", liars=1, noise=1.0, robust="clip")
    assert len(told["lying"]) == 1
    assert "1 of 4 clients lie: accuracy and its like are those of the honest ones" in " ".join(told["notes"])
    assert told["privacy"]["noise"] == 1.0
    quiet, why = tell(aggregator="fedavg", min_batch=5), "batch=4 is below min_batch=5: nobody shares anything"
    assert why in quiet["notes"]
    assert quiet["aggregator"] == "fedavg"
    assert why not in tell(aggregator="local", min_batch=5)["notes"]


def test_checking_measures_nothing(cache, monkeypatch):
    monkeypatch.setattr(build, "fastest_lift", None)
    assert check_parts(single(SMALL), CPU, cache).stream.clients == 4
    with pytest.raises(UserError, match="robust=median has no effect on ugsa"):
        check_parts(single({**SMALL, "aggregator": "ugsa", "robust": "median"}), CPU, cache)


def test_only_what_is_left_to_us_is_measured(cache, monkeypatch):
    asked = []
    monkeypatch.setattr(build, "fastest_lift", lambda *all_of: asked.append(all_of[2:]) or by_loop)
    for lift in ("auto", "vmap", "loop"):
        experiment = single({**SMALL, "lift": lift})
        choose_lifter(experiment, choose_parts(experiment, CPU, cache))
    assert asked == [(4, 4, (3, 8, 8), 9 * 4 * 4)]
    assert LONG > 9 * 4 * 4


@pytest.mark.parametrize(("side", "batch", "loops"), [(128, 8, True), (128, 2, False), (64, 8, False)])
def test_batches_of_large_pictures_pass_a_cpu_one_client_after_another(make_domains, side, batch, loops):
    model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3))
    cache = Cache({"dataset": make_domains(side=side), "model": model})
    experiment = single({**SMALL, "batch": batch, "slots": 1})
    lift = choose_lifter(experiment, choose_parts(experiment, CPU, cache))
    assert (lift is by_loop) == loops


def test_a_model_that_vmap_cannot_run_is_looped(domains):
    class Branching(nn.Sequential):
        def forward(self, x):
            return super().forward(x if x.mean() > 0 else -x)

    cache = Cache({"dataset": domains, "model": Branching(nn.Flatten(), nn.Linear(192, 3))})
    experiment = single({**SMALL, "adapter": "none", "aggregator": "local"})
    parts = choose_parts(experiment, CPU, cache)
    assert parts.lift == "loop"
    assert choose_lifter(experiment, parts) is by_loop


def test_rounds_with_checks_are_played_on_the_host(cache, monkeypatch):
    def make(**values):
        experiment = single({**SMALL, **values})
        return federate(experiment, choose_parts(experiment, CPU, cache), by_loop)

    monkeypatch.setattr("fedctta.runs.build.choose_graphs", lambda how, device: {"graph": "always"}.get(how, "auto"))
    for words, graphs, ahead in (({}, "auto", True), ({"check": 5}, "never", True)):
        federation = make(**words)
        assert (federation.graphs, federation.ahead) == (graphs, ahead)
    assert not make(check=5, guard="reset").ahead  # who takes part is not known in advance
    with pytest.raises(UserError, match="lift=graph cannot replay rounds with check: use lift=auto"):
        make(check=5, lift="graph")


def test_graphs_are_for_gpus():
    gpu = torch.device("cuda")
    assert [choose_graphs(how, gpu) for how in ("graph", "auto", "vmap", "loop")] == ["always", "auto", *["never"] * 2]
    assert choose_graphs("auto", CPU) == "never"
    with pytest.raises(UserError, match="lift=graph needs a CUDA GPU"):
        choose_graphs("graph", CPU)


def test_rounds_that_cannot_fit_into_memory_are_refused_before_anything_is_laid_out():
    refuse_large_rounds(10, 10, 100, 10_000)
    with pytest.raises(UserError, match=r"one round has 100,000,000 images, which take 1,229 GB of \d+ GB"):
        check_parts(
            single({"dataset": "shapes-c", "clients": 100_000, "samples": "overlap", "slots": 1, "batch": 1000}),
            torch.device("cpu"),
            Cache(),
        )


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "float64"])
def test_a_model_in_another_precision_is_refused(precision):
    module = nn.Linear(2, 2)
    refuse_precision(Network(module))
    with pytest.raises(
        UserError, match=rf"a run computes in float32 and the model is in {precision}: call \.float\(\)"
    ):
        refuse_precision(Network(module.to(getattr(torch, precision))))
