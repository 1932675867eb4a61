"""One experiment: its record is kept and found again, for the same numbers only; a broken one is continued."""

from __future__ import annotations

import gc
import importlib
import json
import re
import sys
import weakref
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import fedctta
from fedctta.adapters.atp import adaptable
from fedctta.engine import simulation
from fedctta.engine.captured_lift import CapturedLift
from fedctta.engine.cuda_graphs import RoundGraphs
from fedctta.engine.device_stream import DeviceStream
from fedctta.errors import UserError
from fedctta.report.weights import depict
from fedctta.results.records import Record
from fedctta.runs import build, trial
from fedctta.runs.build import choose_parts
from fedctta.runs.cache import Cache
from fedctta.runs.settings import expand
from fedctta.runs.trial import check, kept, run_one

SMALL = {"clients": 4, "slots": 3, "batch": 4, "niid.clusters": 2, "device": "cpu"}


@pytest.fixture
def prepare(domains, tiny_module):
    """Give the maker of (experiment, cache): nine rounds, with data and a model of one's own."""

    def prepare(dataset=domains, model=tiny_module, **values):
        given = {"dataset": dataset, "model": model}
        objects = {key: value for key, value in given.items() if not isinstance(value, str)}
        (experiment,) = expand({**SMALL, **given, **dict.fromkeys(objects, "mine"), **values})
        return experiment, Cache(objects)

    return prepare


@pytest.fixture
def start(prepare):
    """Give `run_one` in short."""

    def start(out=None, resume=False, on_round=None, **values):
        return run_one(*prepare(**values), out, resume, lambda rounds: on_round or (lambda t, tally: None))

    return start


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def break_in(round_):
    def end(t, tally):
        if t == round_:
            raise KeyboardInterrupt

    return end


def save_every_round(monkeypatch):
    simulate = trial.simulate
    monkeypatch.setattr(trial, "simulate", lambda *one, **more: simulate(*one, **more, save_every=0))


def test_a_finished_run_leaves_its_record_and_nothing_else(start, tmp_path):
    record = start(out=tmp_path, aggregator="fedavg", seed=3)
    (name,) = files(tmp_path)
    assert name.startswith("runs/niid-bn-fedavg-seed3-")
    assert name.endswith(".safetensors")
    assert record.settings["adapter"] == "bn"
    assert (record.seen == 4).all()
    assert record.seen.shape == record.correct.shape == (9, 4)


def test_without_a_folder_nothing_is_written(start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start(aggregator="local")
    assert files(tmp_path) == []


def test_a_finished_run_is_not_played_again_unless_that_is_asked(start, tmp_path, monkeypatch):
    first = start(out=tmp_path)
    told = []
    again = start(out=tmp_path, on_round=lambda t, tally: told.append(t))
    assert told == list(range(9))
    assert np.array_equal(again.entropy, first.entropy)
    monkeypatch.setattr(trial, "simulate", None)  # nothing may be played from here on
    assert start(out=tmp_path, resume=True).summary() == again.summary()  # the seconds too


@pytest.mark.parametrize(("resume", "first"), [(True, 5), (False, 0)])
def test_a_broken_run_is_continued_or_begun_anew_as_asked(start, tmp_path, monkeypatch, resume, first):
    whole = start(aggregator="fedavg")
    save_every_round(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        start(out=tmp_path, aggregator="fedavg", on_round=break_in(5))  # five rounds are saved
    (place,) = files(tmp_path)
    assert place.endswith(".checkpoint")
    told = []
    record = start(out=tmp_path, aggregator="fedavg", resume=resume, on_round=lambda t, tally: told.append(t))
    assert told == list(range(first, 9))
    assert np.array_equal(record.correct, whole.correct)
    assert np.array_equal(record.entropy, whole.entropy)
    (name,) = files(tmp_path)
    assert name == place.replace(".checkpoint", ".safetensors")


def test_a_kept_record_is_found_and_another_is_not(prepare, tmp_path):
    done, other = prepare(seed=0), prepare(seed=1)
    record = run_one(*done, tmp_path, False, lambda rounds: lambda t, tally: None)
    found = kept(*done, tmp_path)
    assert found is not None
    assert found.summary() == record.summary()
    assert kept(*other, tmp_path) is None


@pytest.fixture
def identity(prepare, tmp_path):
    """Give the name under which a run is kept."""
    place = tmp_path / "identity"

    def identity(**values):
        experiment, cache = prepare(**values)
        parts = choose_parts(experiment, torch.device("cpu"), cache)
        return trial._place(experiment, trial._identity(experiment, parts, cache), place).name

    return identity


def other_images(domains):
    images = domains.images["d1"].copy()
    images[-1, -1, -1, -1] ^= 1
    return replace(domains, images={**domains.images, "d1": images})


def other_labels(domains):
    return replace(domains, labels=(domains.labels + 1) % 3)


def other_names(domains):
    images = {f"e{name}": pixels for name, pixels in domains.images.items()}
    return replace(domains, names=tuple(images), images=images)


def same_in_another_place(domains):
    return replace(domains, images={name: pixels.copy() for name, pixels in domains.images.items()})


def test_equal_data_and_an_equal_model_are_the_same_run(identity, domains, tiny_module):
    assert identity() == identity(dataset=same_in_another_place(domains))
    assert identity() == identity(model=deepcopy(tiny_module))


@pytest.mark.parametrize("change", [other_images, other_labels, other_names])
def test_other_data_are_another_run(identity, domains, change):
    assert identity(dataset=change(domains)) != identity()


def test_other_weights_are_another_run(identity, tiny_module):
    before = identity()
    with torch.no_grad():
        tiny_module[5].bias[0] += 1e-6
    assert identity() != before


@pytest.mark.parametrize(
    "values", [{"seed": 1}, {"interval": 2}, {"fedctta.ema": 0.5}, {"stragglers": 0.5}, {"samples": "overlap"}]
)
def test_other_settings_are_another_run(identity, values):
    assert identity(aggregator="fedctta", **values) != identity(aggregator="fedctta")


def test_another_version_is_another_run(identity, monkeypatch):
    before = identity()
    monkeypatch.setattr(fedctta, "__version__", "0.0.0")
    assert identity() != before


def test_other_rates_are_another_run(identity, tiny_network, tmp_path):
    rates = tmp_path / "rates.safetensors"

    def with_rate(rate):
        save_file({name: torch.tensor(rate) for name in adaptable(tiny_network)}, rates)
        return identity(adapter="atp", **{"atp.rates": str(rates)})

    before, after, again = with_rate(0.0), with_rate(1.0), with_rate(0.0)
    assert before == again != after


MODEL = """
import torch
from torch import nn

class Mine(nn.Sequential):
    def forward(self, x):
        return ACTIVATION(super().forward(x))

def make():
    torch.manual_seed(0)
    return Mine(nn.Conv2d(3, 3, 8), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 3))
"""


def test_an_edited_model_is_another_run(identity, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)

    def with_activation(name):
        (tmp_path / "edited_model.py").write_text(MODEL.replace("ACTIVATION", name))
        sys.modules.pop("edited_model", None)
        importlib.invalidate_caches()
        return identity(model="edited_model:make")

    before, after, again = (with_activation(f"torch.{name}") for name in ("relu", "sigmoid", "relu"))
    assert before == again != after


def test_a_record_is_not_taken_for_that_of_another_model(start, tmp_path, tiny_module):
    before = start(out=tmp_path, aggregator="local")
    with torch.no_grad():
        tiny_module[5].bias += torch.tensor([100.0, 0, 0])
    after = start(out=tmp_path, aggregator="local", resume=True)
    assert (before.correct != after.correct).any()
    assert len(files(tmp_path)) == 2


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"adapter": "tent", "tent.lr": 1e38, "aggregator": "local"},
            r"by round \d+: take tent.lr=1e\+38 nearer to the defaults, or check the model and its weights$",
        ),
        (
            {"noise": 1e38, "aggregator": "fedavg"},
            r"by round \d+: take noise=1e\+38 nearer to the defaults, or check the model and its weights$",
        ),
        ({"model": "spoilt", "adapter": "none"}, r"by round \d+: check the model and its weights$"),
    ],
)
def test_predictions_that_are_not_finite_name_what_is_unusual(start, tmp_path, values, said, tiny_module):
    if values.get("model") == "spoilt":
        tiny_module[-1].bias.data[0] = torch.nan
        values = values | {"model": tiny_module}
    with pytest.raises(UserError, match=said) as told:
        start(out=tmp_path, **values)
    assert "\n" not in str(told.value)
    assert files(tmp_path) == []


def test_checking_refuses_what_playing_would_and_plays_nothing(prepare, start, monkeypatch):
    monkeypatch.setattr(trial, "simulate", None)
    check(*prepare(aggregator="fedavg", robust="median"))
    for values, said in (
        ({"aggregator": "ugsa", "robust": "median"}, "robust=median has no effect on ugsa"),
        ({"adapter": "tent", "noise": 1.0}, "cover the statistics of one batch only"),
        ({"clients": 1000}, "fewer clients"),
        ({"adapter": "tent", "storage": "bf16"}, "storage=bf16 has no effect on adapter 'tent', whose .*: drop it"),
    ):
        for refuse in (lambda values=values: check(*prepare(**values)), lambda values=values: start(**values)):
            with pytest.raises(UserError, match=said):
                refuse()


def test_where_nobody_collaborates_the_record_holds_the_identity_once(start):
    alone = start(aggregator="local")
    assert np.array_equal(alone.collaboration, np.eye(4)[None])
    assert alone.collaboration_rounds.tolist() == [0]
    assert start(aggregator="fedavg", interval=4).collaboration_rounds.tolist() == [3, 7]


@pytest.mark.parametrize("more", [{}, {"check": 2, "guard": "reset"}, {"retention": 8, "predict": "before"}])
def test_weights_are_stored_in_bfloat16_if_asked(start, more):
    plain, asked = (start(adapter="grad", aggregator="fedavg", **kept, **more) for kept in ({}, {"storage": "bf16"}))
    assert asked.settings["storage"] == "bf16"
    assert "storage" not in plain.settings
    assert asked.bytes_up < 0.7 * plain.bytes_up
    assert abs(int(asked.correct.sum()) - int(plain.correct.sum())) <= 0.1 * plain.seen.sum()


def test_earlier_domains_are_measured_only_if_asked(start):
    assert not start().retained.size
    asked = start(retention=8)
    assert len(asked.retained) == len(asked.retained_rounds) > 0
    assert np.isfinite(asked.retained[-1]).all()


def test_health_is_watched_only_if_asked(start, tmp_path):
    plain, asked = start(), start(check=2)
    assert plain.health == ()
    assert "health" not in plain.summary()
    assert len(asked.health) == 4
    assert np.array_equal(plain.correct, asked.correct)
    assert all(0 < client.accuracy < 1 and 0 < client.source_accuracy < 1 for client in asked.health)
    told = json.loads(json.dumps(asked.summary(), allow_nan=False))["health"][3]
    assert (told["client"], told["answers"], told["alarms"]) == (3, "adapted", [])
    asked.save(tmp_path / "record")
    assert Record.load(tmp_path / "record").health == asked.health


def test_a_record_says_which_experiment_it_is_of():
    (one,) = expand({"dataset": "shapes-c", "aggregator": "fedavg", "device": "cpu"})
    told = trial.describe_origin(one)
    assert told["fingerprint"] == one.anywhere.fingerprint
    assert told["words"] == {"dataset": "shapes-c", "aggregator": "fedavg"}
    assert told["version"] == fedctta.__version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", told["made"])


def test_a_run_of_objects_has_no_experiment(start):
    assert start(aggregator="fedavg").origin == {}


@pytest.mark.parametrize(
    "values", [{"aggregator": "fedctta"}, {"aggregator": "kin"}, {"aggregator": "fedavg", "check": 1}]
)
def test_a_run_leaves_nothing_that_waits_for_the_collector(prepare, monkeypatch, values):
    """On a GPU memory that waits is memory that the next run lacks: graphs, images, the clients of a round."""
    importlib.import_module("torch._dynamo")  # what calls for gradients first loads it, and its loading leaves frames
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(CapturedLift, "_capture", lambda self, lifted, leaves, taken: None)  # there is no GPU here
    monkeypatch.setattr(build, "choose_graphs", lambda how, device: "auto")
    monkeypatch.setattr(simulation, "put_on_device", lambda stream, device: DeviceStream(stream, stream.data, device))
    seen = []
    for kind in (RoundGraphs, CapturedLift, DeviceStream, simulation.Tally):
        watch_births(monkeypatch, kind, seen)
    monkeypatch.setattr(trial, "federate", lambda *given: noted(build.federate(*given), seen))
    experiment, cache = prepare(adapter="tent", **values)
    gc.collect()
    gc.disable()
    try:
        run_one(experiment, cache, None, False, lambda rounds: lambda t, tally: noted_state(t, seen))
        alive = [ref() for ref in seen if ref() is not None]
    finally:
        gc.enable()
    assert len(seen) >= 3
    assert alive == []


def watch_births(monkeypatch, kind, seen):
    begin = kind.__init__

    def init(self, *given):
        begin(self, *given)
        seen.append(weakref.ref(self))

    monkeypatch.setattr(kind, "__init__", init)


def noted(federation, seen):
    seen.append(weakref.ref(federation))
    return federation


def noted_state(t, seen):
    frame = sys._getframe(2)  # of `simulate`, which holds the state
    if t == 2:
        seen.extend(weakref.ref(tensor) for tensor in frame.f_locals["state"].clients.own.values())


def test_memory_is_given_back_after_a_run_that_fails_too(prepare, monkeypatch):
    given_back = []
    monkeypatch.setattr(trial, "release_memory", given_back.append)
    with pytest.raises(KeyboardInterrupt):
        run_one(*prepare(), None, False, lambda rounds: break_in(1))
    assert given_back == [torch.device("cpu")]


@pytest.mark.parametrize(("aggregator", "told"), [("fedctta", True), ("local", False)])
def test_of_many_clients_no_w_is_kept_and_the_run_says_so(aggregator, told, start, monkeypatch):
    whole = start(aggregator=aggregator)
    monkeypatch.setattr("fedctta.engine.tally.KEPT_MATRIX_BYTES", 4 * 4 * 4 - 1)
    record = start(aggregator=aggregator)
    assert record.collaboration.size == record.collaboration_rounds.size == 0
    assert record.same_domain_weight == whole.same_domain_weight
    assert ("W is not kept: that of 4 clients is larger than 64 MiB" in record.settings["notes"]) == told
    assert not any("W is not kept" in note for note in whole.settings["notes"])
    assert depict(record) is None
