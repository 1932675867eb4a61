"""Words, keyword arguments and presets become experiments."""

from __future__ import annotations

import dataclasses
import doctest
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedctta.adapters import Adapter, adapters
from fedctta.aggregators import Aggregator, aggregators
from fedctta.errors import UserError
from fedctta.runs import settings
from fedctta.runs.settings import KEYS, Experiment, expand, load_preset, parse_single, parse_words, presets, single


def test_the_example_in_the_docstring():
    assert doctest.testmod(settings) == (0, 3)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {}),
        (["seed=0"], {"seed": ["0"]}),
        (["seed=0, 1,", "stream=iid"], {"seed": ["0", "1"], "stream": ["iid"]}),
        (["folder=a=b"], {"folder": ["a=b"]}),
    ],
)
def test_words_are_keys_with_values(words, expected):
    assert parse_words(words) == expected


@pytest.mark.parametrize("word", ["seed", "seed=", "=1", "seed=,", "seed= , "])
def test_a_word_without_a_key_or_a_value_is_told(word):
    with pytest.raises(UserError, match=f"cannot read '{word}': write key=value"):
        parse_words([word])


def test_a_key_given_twice_is_told_with_the_way_to_run_both():
    with pytest.raises(UserError, match="seed is given twice: write seed=0,1,2 to run both"):
        parse_words(["seed=0,1", "seed=2"])


def test_where_one_value_is_taken_several_are_told():
    assert parse_single(["epochs=2", "corruptions=fog+snow"], "a training") == {
        "epochs": "2",
        "corruptions": "fog+snow",
    }
    with pytest.raises(UserError, match=r"corruptions has 2 values and a training takes one: .* joined by \+"):
        parse_single(["corruptions=fog,snow"], "a training")


def test_nothing_said_is_one_experiment_of_defaults():
    assert expand({}) == [Experiment()]


def test_text_becomes_the_types_of_the_fields():
    (one,) = expand({"seed": "3", "clients": "none", "slots": "7", "lift": "loop", "fedctta.temperature": "2"})
    assert (one.seed, one.clients, one.slots, one.lift) == (3, None, 7, "loop")
    assert one.parameters == {"fedctta": {"temperature": 2.0}}
    assert one.method(aggregators, "fedctta").temperature == 2.0
    assert one.method(aggregators, "fedavg") == aggregators.create("fedavg")


@given(st.sets(st.integers(0, 9), min_size=1), st.sets(st.sampled_from(["local", "fedavg", "fedctta"]), min_size=1))
def test_a_sweep_is_every_combination_once(seeds, names):
    found = expand({"seed": sorted(seeds), "aggregator": sorted(names)})
    assert [(e.seed, e.aggregator) for e in found] == [(s, n) for s in sorted(seeds) for n in sorted(names)]
    assert len({e.fingerprint for e in found}) == len(found)


def test_values_given_twice_are_one_experiment():
    assert len(expand({"seed": ["0", 0, "1"]})) == 2


def test_without_adaptation_the_aggregator_does_not_matter():
    found = expand({"adapter": ["none", "bn"], "aggregator": ["fedavg", "fedctta"]})
    assert [(e.adapter, e.aggregator) for e in found] == [("none", "local"), ("bn", "fedavg"), ("bn", "fedctta")]


def test_predicting_before_counts_where_it_changes_something():
    runs = expand(
        {"adapter": ["none", "bn", "tent"], "aggregator": ["local", "fedavg"], "predict": ["before", "after"]}
    )
    told = [(run.adapter, run.aggregator, run.predict) for run in runs]
    assert sorted(told) == sorted(
        [("none", "local", "after"), ("bn", "local", "after")]
        + [("bn", "fedavg", when) for when in ("before", "after")]
        + [("tent", server, when) for server in ("local", "fedavg") for when in ("before", "after")]
    )
    assert single({"adapter": "none", "predict": "before"}) == single({"adapter": "none"})


@pytest.mark.parametrize(
    "values",
    [
        {"adapter": ["none", "lame", "memo"]},
        {"adapter": ["bn", "norm-alpha"], "aggregator": "local"},
        {"adapter": "fedthe", "fedthe.heads": "auto"},
    ],
)
def test_predicting_before_is_refused_where_it_changes_nothing(values):
    with pytest.raises(UserError, match="predict=before has no effect"):
        expand({**values, "predict": "before"})


def test_a_parameter_is_swept_only_where_its_method_runs():
    found = expand({"aggregator": ["fedctta", "local"], "fedctta.temperature": [0.5, 2]})
    assert [(e.aggregator, e.parameters) for e in found] == [
        ("fedctta", {"fedctta": {"temperature": 0.5}}),
        ("fedctta", {"fedctta": {"temperature": 2.0}}),
        ("local", {}),
    ]


def test_an_adapter_and_an_aggregator_of_one_name_have_their_own_parameters():
    @adapters.register
    @dataclasses.dataclass(frozen=True)
    class Client(Adapter):
        name: ClassVar[str] = "twin"
        rate: float = 1.0

    @aggregators.register
    @dataclasses.dataclass(frozen=True)
    class Server(Aggregator):
        name: ClassVar[str] = "twin"
        share: float = 0.5

    (one,) = expand({"adapter": "twin", "aggregator": "twin", "twin.rate": "2", "twin.share": "0.5"})
    assert one.parameters == {"twin": {"rate": 2.0}}, "the other is the default"
    both = single({"adapter": "twin", "aggregator": "twin", "twin.rate": 2, "twin.share": 0.1})
    assert both.method(adapters, "twin") == Client(2.0)
    assert both.method(aggregators, "twin") == Server(0.1)
    with pytest.raises(UserError, match=r"twin.rate has no effect: adapter twin is in none of the runs"):
        expand({"adapter": "tent", "aggregator": "twin", "twin.rate": 2})
    with pytest.raises(UserError, match=r"'rote': did you mean rate\? \(all: rate, share\)"):
        expand({"adapter": "twin", "twin.rote": 2})


def test_a_default_that_is_written_out_is_the_same_experiment():
    said, unsaid = expand({"fedctta.temperature": 1.0})[0], expand({})[0]
    assert said.fingerprint == unsaid.fingerprint
    assert single({"fedctta.temperature": "1", "grad.lr": 0.5}) == unsaid  # grad is not in the run


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sed": 1}, "unknown key 'sed': did you mean seed"),
        ({"parameters": {}}, "unknown key 'parameters'"),
        ({"niid": {"clusters": 2}}, "unknown key 'niid': its parameters are keys, niid.clusters"),
        ({"fedavg": 1}, "unknown key 'fedavg'"),
        ({"fedctt.ema": 0.9}, "unknown method 'fedctt': did you mean fedctta"),
        ({"fedctta.temp": 1}, "unknown parameter of fedctta 'temp'"),
        ({"aggregator": "fedavg", "fedavg.x": 1}, "fedavg has no parameters"),
        ({"aggregator": "fedsgd"}, "unknown aggregator 'fedsgd'"),
        ({"adapter": "batchnorm"}, "unknown adapter 'batchnorm'"),
        ({"stream": "nid"}, "unknown stream 'nid': did you mean .*niid"),
        ({"device": "gpu"}, "unknown value for device 'gpu'"),
        ({"samples": "shared"}, "unknown samples 'shared'"),
        ({"seed": "x"}, "seed=x is not a whole number"),
        ({"seed": -1}, "seed=-1 must be between 0 and 4294967295"),
        ({"seed": 2**32}, "seed=4294967296 must be between 0 and"),
        ({"seed": []}, "seed is an empty list: give it a value"),
        ({"batch": 0}, "batch=0 must be at least 1"),
        ({"interval": 0}, "interval=0 must be at least 1"),
        ({"clients": 0}, "clients=0 must be at least 1"),
        ({"slots": -5}, "slots=-5 must be at least 1"),
        ({"aggregator": "local", "fedctta.ema": 0.9}, "fedctta.ema has no effect: aggregator fedctta is in none"),
        ({"custom.file": "x"}, "custom.file has no effect: stream custom is in none"),
        ({"check": -1}, "check=-1 must not be negative"),
        ({"guard": "on", "check": 10}, "unknown value for guard 'on'"),
        ({"guard": "reset"}, "guard=reset acts on what checks find and check=0 asks for none: give check=10"),
        ({"adapter": "none", "check": 10}, "check has no effect: nothing is adapted"),
        ({"cap": 0.1, "robust": ["clip", "median"]}, "cap has no effect without robust=cap"),
        ({"trim": 0.1}, "trim has no effect without robust=trimmed"),
        ({"lie": "scale"}, "lie has no effect without liars"),
        ({"delay": 2}, "delay has no effect without stragglers"),
        ({"stale": "refuse"}, "stale has no effect without stragglers"),
        ({"decay": [0.1, 0.5], "stragglers": 0}, "decay has no effect without stragglers"),
        ({"delta": 1e-6, "noise": 0.0, "aggregator": "fedavg"}, "delta has no effect without epsilon or noise"),
        ({"aggregator": "local", "liars": 1}, "liars has no effect: nothing is sent in these runs"),
        ({"adapter": "none", "robust": "median"}, "robust has no effect: nothing is sent"),
        ({"aggregator": "local", "interval": 5}, "interval has no effect: nothing is sent"),
        ({"aggregator": "local", "stragglers": 0.5}, "stragglers has no effect: nothing is sent"),
        ({"aggregator": "local", "min_batch": 5}, "min_batch has no effect: nothing is sent"),
        (
            {"batch": [2, 4], "aggregator": ["local", "fedavg"], "min_batch": 5},
            "min_batch=5 is above batch=2, so that nobody would share anything: lower min_batch, raise batch",
        ),
        ({"adapter": "none", "guard": "reset"}, "guard has no effect: nothing is adapted"),
        ({"adapter": "none", "storage": "bf16"}, "storage has no effect: nothing is adapted"),
        ({"storage": "half"}, "unknown value for storage 'half'"),
    ],
)
def test_what_cannot_be_meant_is_told(values, message):
    with pytest.raises(UserError, match=message):
        expand(values)


OTHER = {
    **{"dataset": "shapes-c", "severity": 3, "domains": "fog+snow", "folder": "here", "model": "resnet18"},
    **{"weights": "w", "adapter": "grad", "aggregator": "local", "stream": "iid", "samples": "overlap"},
    **{
        "order": "bursts",
        "clients": 7,
        "batch": 5,
        "slots": 9,
        "interval": 2,
        "predict": "before",
        "layout": "folders",
        "size": 64,
        "source_images": "clean",
        "stragglers": 0.5,
        "delay": 5,
        "stale": "refuse",
        "decay": 0.9,
        "robust": "clip",
        "cap": 0.5,
        "clip": 3.0,
        "trim": 0.1,
        "liars": 2,
        "lie": "scale",
        "lie_until": 9,
        "noise": 0.5,
        "epsilon": 8.0,
        "delta": 1e-6,
        "min_batch": 8,
        "retention": 10,
        "check": 10,
        "guard": "reset",
        "seed": 1,
        "device": "cpu",
        "lift": "vmap",
        "precision": "tf32",
        "storage": "bf16",
        "engine": "flower",
    },
}


def test_what_some_runs_of_a_sweep_use_is_not_idle():
    sweep = {"adapter": ["none", "bn"], "aggregator": ["local", "fedavg"]}
    assert len(expand({**sweep, "liars": 1, "interval": 5, "stragglers": [0, 0.2], "delay": 2})) == 6


def test_every_key_is_part_of_the_fingerprint():
    assert set(OTHER) == set(KEYS)
    changed = [dataclasses.replace(Experiment(), **{key: value}) for key, value in OTHER.items()]
    changed.append(Experiment(parameters={"fedctta": {"ema": 0.9}}))
    assert len({e.fingerprint for e in [Experiment(), *changed]}) == len(changed) + 1


def test_the_fingerprint_does_not_depend_on_the_order_of_words():
    values = {"seed": 1, "fedctta.ema": 0.5, "fedctta.temperature": 2}
    assert expand(values)[0].fingerprint == expand(dict(reversed(values.items())))[0].fingerprint


def test_a_preset_file_is_values_and_published_numbers(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'title = "Tröpfchen"\n[run]\nseed = [0, 1]\nstream = "iid"\nfedctta.temperature = [0.5, 1]\n'
        '[published]\n"bn+fedctta" = {iid = 66.5}\n',
        encoding="utf-8",
    )
    preset = load_preset(str(path))
    assert preset.title == "Tröpfchen"
    assert preset.published == {"bn+fedctta": {"iid": 66.5}}
    assert preset.values == {"seed": [0, 1], "stream": "iid", "fedctta.temperature": [0.5, 1]}
    assert len(expand(preset.values)) == 4


def test_a_preset_without_a_title_is_called_like_its_file(tmp_path):
    (tmp_path / "mine.toml").write_text("[run]\nseed = 1")
    assert load_preset(str(tmp_path / "mine.toml")) == settings.Preset("mine", {"seed": 1}, {}, own=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[run", "cannot read the preset .*mine.toml"),
        ("[runs]\nseed = 1", "unknown table in mine.toml 'runs': did you mean run"),
        ("seed = 1", "unknown table in mine.toml 'seed'"),
        ("run = 3", r"mine.toml: run must be a table: write \[run\]"),
        ("published = [1]", "mine.toml: published must be a table"),
        ("", r"mine.toml: there is nothing to run: write \[run\]"),
        ("[published]\nFedAvg = { niid = 1 }", "there is nothing to run"),
        ("title = 3\n[run]\nseed = 1", "mine.toml: title = 3 must be text"),
        ("[run]\nseed = 1\n[published]\nFedAvg = 3", "published numbers of 'FedAvg' must be a table"),
        ("[run]\nseed = 1\n[published]\nFedAvg = { niid = '66' }", "published number '66' of 'FedAvg', niid: write"),
        ("[run]\nseed = 1\n[published]\nFedAvg = { niid = true }", "published number True of 'FedAvg', niid: write"),
    ],
)
def test_a_preset_that_cannot_be_read_is_told(tmp_path, text, message):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(UserError, match=message):
        load_preset(str(tmp_path / "mine.toml"))


def test_a_preset_that_is_not_text_or_not_there_is_told(tmp_path):
    (tmp_path / "mine.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"cannot read the preset .*mine.toml"):
        load_preset(str(tmp_path / "mine.toml"))
    with pytest.raises(UserError, match=r"there is no preset file .*other.toml: check the path"):
        load_preset(str(tmp_path / "other.toml"))


def test_a_preset_is_found_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "presets", lambda: {"tables": tmp_path / "tables.toml"})
    (tmp_path / "tables.toml").write_text("[run]\nseed = 5")
    assert load_preset("tables").values == {"seed": 5}
    with pytest.raises(UserError, match="unknown preset 'table': did you mean tables"):
        load_preset("table")


def test_every_preset_of_the_package_describes_experiments():
    for name in presets():
        assert expand(load_preset(name).values), name


def test_words_are_what_differs_and_decide_the_fingerprint():
    one = Experiment(batch=5, device="cpu", parameters={"bn": {"momentum": 0.5}})
    assert one.words == {"batch": 5, "device": "cpu", "parameters": {"bn": {"momentum": 0.5}}}
    assert Experiment().words == {}
    assert one.anywhere.words == {"batch": 5, "parameters": {"bn": {"momentum": 0.5}}}
    assert one.anywhere.fingerprint != one.fingerprint
    assert one.anywhere.fingerprint == dataclasses.replace(one, device="cuda").anywhere.fingerprint
